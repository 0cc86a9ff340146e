"""Make ORM sessions that send messages in their own transactions."""

from __future__ import annotations

from typing import Any, Unpack

from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker as orm_sessionmaker

from onceward import AsyncPostbox, Postbox
from onceward.integrations.sqlalchemy import apart
from onceward.integrations.sqlalchemy.engines import EngineOptions, engine, transaction
from onceward.message.options import SendOptions


class PostboxSession(OrmSession):
    """A session of SQLAlchemy that also sends; messages are committed with its rows."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        apart.note(self)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send a message in this session's transaction, begun if need be; return its id.

        ``transaction(session, name)`` sends in another conversation than the default one.

        Raises:
            SendError: the message is refused; the transaction stays open.
            InvalidArgument: the session is not of ``engine(box)``, or its level is AUTOCOMMIT.

        """
        return transaction(self).send(to, body, **options)


def sessionmaker(
    box: Postbox | AsyncPostbox, *, foreign_keys: bool = False, **options: Unpack[EngineOptions]
) -> orm_sessionmaker[PostboxSession]:
    """
    Return a maker of sessions that work, and send, in transactions of an open postbox.

    It has an engine of its own; the arguments are those of ``engine``.

    Raises:
        StoreError: the postbox is closed.

    """
    made = engine(box, foreign_keys=foreign_keys, **options)
    return orm_sessionmaker(made, class_=PostboxSession)
