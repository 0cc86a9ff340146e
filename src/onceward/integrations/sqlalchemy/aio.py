"""
Use SQLAlchemy's asyncio extension on an agent's file; needs ``onceward[sqlalchemy]``.

Rows and messages are one transaction, as with ``onceward.integrations.sqlalchemy``.
"""

try:
    import greenlet as _greenlet  # noqa: F401 - SQLAlchemy needs it, and its older ones tell late

    from onceward.integrations.sqlalchemy.loop_engines import (
        async_engine,
        async_session_for,
        async_transaction,
    )
except ModuleNotFoundError as error:
    msg = (
        f"onceward.integrations.sqlalchemy.aio needs {error.name}, which is not installed:"
        " pip install 'onceward[sqlalchemy]'"
    )
    raise ModuleNotFoundError(msg, name=error.name) from error

__all__ = ["async_engine", "async_session_for", "async_transaction"]
