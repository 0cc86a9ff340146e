"""Run SQLAlchemy's own suite for dialects on a postbox: a plugin of a pytest of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.util.concurrency import await_only

from onceward import AsyncPostbox, Postbox
from onceward.integrations.dbapi.connections import Connection
from onceward.integrations.sqlalchemy.dialect import LoopDialect, OncewardDialect
from onceward.integrations.sqlalchemy.loop_connections import BlockConnection

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing import provision  # noqa: E402 - it registers itself
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403 - as SQLAlchemy asks

import_module("sqlalchemy.dialects.sqlite.provision")  # it registers itself
_box: list[Postbox] = []
_loop_box: list[AsyncPostbox] = []


class SuiteDialect(OncewardDialect):
    """The dialect, connected by a url, as the suite asks for."""

    driver = "onceward_suite"
    supports_statement_cache = True

    def connect(self, *_: Any, **__: Any) -> Any:
        """Connect to the one postbox of the run."""
        if not _box:
            _box.append(Postbox(Path.cwd() / "suite.db", agent="suite", start=False))
        return Connection(_box[0]._outbox)


class LoopSuiteDialect(LoopDialect):
    """The dialect of event loops, in the same way; the suite has one loop."""

    driver = "onceward_loop_suite"
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: object) -> type[OncewardDialect]:
        """Return this one."""
        del url
        return cls

    def connect(self, *_: Any, **__: Any) -> Any:
        """Connect to the one postbox of the run."""
        if not _loop_box:
            box = AsyncPostbox(Path.cwd() / "suite.db", agent="suite", start=False, busy_timeout=1)
            _loop_box.append(await_only(box.open()))
        box = _loop_box[0]
        return BlockConnection(Connection(box._plain._outbox), box._bridge)


registry.register("sqlite.onceward_suite", __name__, "SuiteDialect")
registry.register("sqlite.onceward_loop_suite", __name__, "LoopSuiteDialect")


@provision.post_configure_engine.for_db("sqlite")  # type: ignore[untyped-decorator]
def _attach_nothing(url: object, engine: Engine, follower_ident: object) -> None:
    """Leave out the second file of SQLite's own set-up: ours has no second schema."""
