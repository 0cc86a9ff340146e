"""
Run the tasks of Django on an agent's file: ``BACKEND`` of an entry of ``TASKS``.

Imports the public names, integrations/django and message.
"""

from onceward.integrations.django.tasks.backend import OncewardBackend
from onceward.integrations.django.tasks.library import task

__all__ = ["OncewardBackend", "task"]
