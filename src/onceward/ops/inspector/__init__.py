"""
Show agents' files in a browser: a page for each agent, message and conversation.

It reads on connections that cannot write, and never makes a writer wait. It needs
the extra ``inspector``. ``onceward inspect`` serves it; ``app`` is an ASGI application, and
``inspector`` one to mount in another application.

Imports the public names, ops, file and message.
"""

from onceward.ops.inspector.application import app
from onceward.ops.inspector.mounted import inspector
from onceward.ops.inspector.visit import Reader

__all__ = ["Reader", "app", "inspector"]
