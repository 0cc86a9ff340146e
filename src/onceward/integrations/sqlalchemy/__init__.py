"""
Use SQLAlchemy on an agent's file; needs ``onceward[sqlalchemy]``.

The engine works through the postbox's own connections, so ORM work and messages are one
transaction, and no second SQLite library opens the file.

Imports the public names, integrations/dbapi, file and message.
"""

from onceward.integrations.dbapi.errors import WrongThread
from onceward.integrations.sqlalchemy.autogenerate import include_name, include_object
from onceward.integrations.sqlalchemy.engines import (
    EngineOptions,
    engine,
    session_for,
    transaction,
)
from onceward.integrations.sqlalchemy.sessions import PostboxSession, sessionmaker

__all__ = [
    "EngineOptions",
    "PostboxSession",
    "WrongThread",
    "engine",
    "include_name",
    "include_object",
    "session_for",
    "sessionmaker",
    "transaction",
]
