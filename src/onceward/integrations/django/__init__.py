"""
Use Django on an agent's file; needs ``onceward[django]``.

The database backend (``ENGINE = "onceward.integrations.django.backend"``) works through the
postbox's own connections, so rows of the ORM and messages are one transaction, and no second
SQLite library opens the file.

Imports the public names, file and message.
"""

from onceward.integrations.django.postboxes import close_postboxes, postbox
from onceward.integrations.django.sending import send

__all__ = ["close_postboxes", "postbox", "send"]
