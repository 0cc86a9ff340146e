"""Django's wrapper of a database, over the connections of an open postbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.sqlite3 import base
from django.utils.asyncio import async_unsafe

from onceward.file.transaction import StoreTransaction
from onceward.integrations.dbapi import module
from onceward.integrations.django import postboxes
from onceward.integrations.django.backend.connections import DjangoConnection, FormatCursor
from onceward.integrations.django.backend.creation import DatabaseCreation
from onceward.integrations.django.backend.features import DatabaseFeatures
from onceward.integrations.django.backend.introspection import DatabaseIntrospection
from onceward.message.log import log, quietly

MODES: Final = ("IMMEDIATE", "DEFERRED")
FAILED: Final = "a callback of on_commit failed; what it waited for is committed"


class DatabaseWrapper(base.DatabaseWrapper):
    """
    A database whose transactions are those of the postbox of its file.

    ``atomic`` takes the turn to write of the file at its begin, or, with the transaction mode
    DEFERRED, with its first statement that writes. In a handler, or a block ``with box.begin()``,
    it joins that transaction by savepoint.
    """

    display_name = "SQLite, in an agent's file"
    Database = module
    features_class = DatabaseFeatures
    creation_class = DatabaseCreation
    introspection_class = DatabaseIntrospection
    connection: Any
    run_on_commit: list[Any]

    def get_connection_params(self) -> dict[str, Any]:
        """Return the options, checked; raise ImproperlyConfigured for those that do not fit."""
        postboxes.path_of(self)
        postboxes.agent_name(self)
        options = dict(postboxes.options_of(self))
        mode = str(options.get("transaction_mode") or MODES[0]).upper()
        if mode not in MODES:
            raise ImproperlyConfigured(f"transaction_mode={mode!r} must be one of {MODES}, or None")
        self.transaction_mode = mode
        return options

    @async_unsafe  # type: ignore[untyped-decorator]
    def get_new_connection(self, conn_params: dict[str, Any]) -> DjangoConnection:
        """Return a connection over the postbox, which is opened if this is its first use."""
        del conn_params  # those of the postbox, which reads them
        with self.wrap_database_errors:
            made = DjangoConnection(postboxes.of_database(self))
        made.deferred = self.transaction_mode == "DEFERRED"
        return made

    def create_cursor(self, name: str | None = None) -> FormatCursor:
        """Return a cursor with Django's placeholders."""
        del name
        self.connection._check_usable()
        return FormatCursor(self.connection)

    @async_unsafe  # type: ignore[untyped-decorator]
    def ensure_connection(self) -> None:
        """Connect; also if the postbox was closed, or the process forked, since the last time."""
        if self.connection is not None and not (self.in_atomic_block or self.connection.usable):
            self.connection = None
        super().ensure_connection()

    def is_usable(self) -> bool:
        """Return whether the postbox is open."""
        return self.connection is not None and self.connection.usable

    def close(self) -> None:
        """Close the connection; the postbox stays open."""
        BaseDatabaseWrapper.close(self)

    # -- transactions -----------------------------------------------------------------------

    def _set_autocommit(self, autocommit: bool) -> None:
        with self.wrap_database_errors:
            if autocommit:
                self.connection.commit()
            self.connection.autocommit = autocommit

    def _start_transaction_under_autocommit(self) -> None:
        with self.wrap_database_errors:
            self.connection.autocommit = False
            try:
                if not self.connection.deferred or self.connection.around is not None:
                    self.connection.begin()
            except BaseException:
                self.connection.autocommit = True
                raise

    def _savepoint_allowed(self) -> bool:
        return not self.get_autocommit()

    def _savepoint(self, sid: str) -> None:
        with self.wrap_database_errors:
            self.connection.begin()
            self.connection.savepoint(sid)

    def _savepoint_commit(self, sid: str) -> None:
        with self.wrap_database_errors:
            self.connection.release(sid)

    def _savepoint_rollback(self, sid: str) -> None:
        with self.wrap_database_errors:
            self.connection.rollback_to(sid)
            self.connection.savepoint(sid)  # which SQL keeps

    # -- after the commit -------------------------------------------------------------------

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> None:
        """Call *func* after the commit: in a handler or a block, after that of all it wrote."""
        around = None if self.in_atomic_block else self._around()
        if around is None or not callable(func):
            super().on_commit(func, robust)
        else:
            around.after_commit(partial(_call, func))

    def run_and_clear_commit_hooks(self) -> None:
        """Call what waits for the commit, or have the transaction around call it after its own."""
        around = self._around()
        if around is None:
            super().run_and_clear_commit_hooks()
            return
        hooks, self.run_on_commit = self.run_on_commit, []
        for hook in hooks:
            around.after_commit(partial(_call, hook[1]))

    def _around(self) -> StoreTransaction | None:
        return None if self.connection is None else self.connection.around

    # -- foreign keys -----------------------------------------------------------------------

    def disable_constraint_checking(self) -> bool:
        """Turn off the check of foreign keys, for the process; False inside a transaction."""
        self.ensure_connection()
        return not self.connection.set_foreign_keys(checked=False)

    def enable_constraint_checking(self) -> None:
        """Turn on the check of foreign keys, if the file is to have it."""
        self.ensure_connection()
        checked = bool(postboxes.options_of(self).get("foreign_keys", True))
        self.connection.set_foreign_keys(checked=checked)


def _call(func: Callable[[], object]) -> None:
    """Call a function after a commit that others share: its error is logged."""
    quietly(func, failed=lambda error: log.error(FAILED, function=repr(func), exc_info=error))
