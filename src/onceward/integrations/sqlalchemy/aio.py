"""
Use SQLAlchemy's asyncio extension on an agent's file; needs ``onceward[sqlalchemy]``.

Rows and messages are one transaction, as with ``onceward.integrations.sqlalchemy``.
"""

from onceward.message.extras import needs

with needs("sqlalchemy", "onceward.integrations.sqlalchemy.aio"):
    import greenlet as _greenlet  # noqa: F401 - SQLAlchemy needs it, and its older ones tell late

    from onceward.integrations.sqlalchemy.loop_engines import (
        async_engine,
        async_session_for,
        async_transaction,
    )

__all__ = ["async_engine", "async_session_for", "async_transaction"]
