"""Send messages in the transaction of Django's ORM."""

from __future__ import annotations

from typing import Any, Unpack

from django.db import connections

from onceward.integrations.django.postboxes import postbox
from onceward.message.names import DEFAULT_SESSION
from onceward.message.options import SendOptions


def send(
    to: str,
    body: object,
    *,
    using: str = "default",
    session: str = DEFAULT_SESSION,
    **options: Unpack[SendOptions],
) -> str:
    """
    Send a message in the open transaction of a database; return its id.

    In ``transaction.atomic`` it is committed or rolled back with the rows; in a handler with the
    handler's end; outside both it is committed before this returns.

    Raises:
        SendError: the message is refused; the transaction stays open.
        ImproperlyConfigured: the database has another engine.

    """
    box = postbox(using)
    wrapper: Any = connections[using]
    if wrapper.get_autocommit():
        return box.session(session).send(to, body, **options)
    wrapper.ensure_connection()
    with wrapper.wrap_database_errors:
        tx = wrapper.connection.transaction(session)
    sent: str = tx.send(to, body, **options)
    return sent
