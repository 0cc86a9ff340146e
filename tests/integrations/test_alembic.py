"""Alembic's autogenerate sees the user's tables and nothing of ours."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from onceward import Postbox
from onceward.integrations.sqlalchemy import engine, include_name, include_object

pytest.importorskip("alembic", reason="a dependency of the tests only")

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime import plugins

wanted = sa.MetaData()
sa.Table("invoice", wanted, sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Text))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of an agent, closed."""
    with Postbox(tmp_path / "shop.db", agent="shop", start=False) as box:
        box.send("shop", 1, type="x")
    return tmp_path / "shop.db"


@pytest.fixture
def standard(path: Path) -> Iterator[sa.Connection]:
    """Connect as another process does that has no postbox."""
    made = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with made.connect() as connection:
        yield connection


def differences(connection: sa.Connection, **options: Any) -> list[str]:
    """Return what autogenerate would write, by kind and table."""
    found = compare_metadata(MigrationContext.configure(connection, opts=options), wanted)
    return sorted(f"{each[0]} {each[1].name}" for each in found)


@pytest.fixture
def plugin() -> str:
    """Return the name of our plugin, set up as Alembic does for an installed package."""
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    [(name, module)] = project["entry-points"]["alembic.plugins"].items()
    if name not in plugins._all_plugins:  # installed before it had the entry point
        plugins.Plugin.setup_plugin_from_module(import_module(module), name)
    return str(name)


def test_autogenerate_by_url_leaves_ours_alone(standard: sa.Connection, plugin: str) -> None:
    """A url of the standard dialect and an ``env.py`` that says nothing of us are enough."""
    without = differences(standard, autogenerate_plugins=["alembic.autogenerate.*", f"~{plugin}"])

    assert "remove_table _onceward_outbox" in without
    assert ["add_table invoice"] == differences(standard)


@pytest.mark.parametrize(
    "options",
    [{"include_name": include_name}, {"include_object": include_object}],
    ids=["name", "object"],
)
def test_the_filters_leave_ours_alone(
    standard: sa.Connection, plugin: str, options: dict[str, Any]
) -> None:
    """Only what the user's metadata asks for is proposed, also where the plugin is left out."""
    named = ["alembic.autogenerate.*", f"~{plugin}"]

    assert ["add_table invoice"] == differences(standard, autogenerate_plugins=named, **options)


def test_the_engine_of_a_postbox_needs_no_filter(path: Path) -> None:
    """Its dialect lists no table of ours; a migration through it commits and undoes."""
    with Postbox(path, agent="shop", start=False) as box:
        with engine(box).connect() as connection:
            before = differences(connection)
            connection.rollback()
            context = MigrationContext.configure(connection)
            with context.begin_transaction(_per_migration=True):
                Operations(context).create_table(
                    "invoice",
                    *(
                        sa.Column(column.name, column.type, primary_key=column.primary_key)
                        for column in wanted.tables["invoice"].columns
                    ),
                )
            after = differences(connection)

        assert (["add_table invoice"], [], []) == (before, after, box.file.check())


@pytest.mark.parametrize(
    ("name", "type_", "table", "expected"),
    [
        ("invoice", "table", None, True),
        (None, "schema", None, True),
        ("onceward", "table", None, True),
        ("_onceward_outbox", "table", None, False),
        ("onceward_send", "table", None, False),
        ("body", "column", "_onceward_outbox", False),
        ("_onceward_outbox_due", "index", "_onceward_outbox", False),
        ("id", "column", "invoice", True),
    ],
)
def test_names_of_ours_are_known(
    name: str | None, type_: str, table: str | None, *, expected: bool
) -> None:
    """A name is ours by its beginning, a column by that of its table."""
    assert expected == include_name(name, type_, {"table_name": table})
