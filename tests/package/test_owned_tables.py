"""A table has one owner: the module in which every statement that writes it stands."""

import ast
import re
from collections import defaultdict
from pathlib import Path

WRITES = re.compile(
    r"\b(?:INSERT\s+(?:OR\s+\w+\s+)?INTO|UPDATE|DELETE\s+FROM)\s+_onceward_(\w+)", re.IGNORECASE
)
SHARED = {"peers": 2}
"""
Modules that write a table besides its owner: a number may fall, and no table may join.

The identity of a restored file resets its peers, below the core.
"""


def writers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return for each table the modules whose constants write it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for table in WRITES.findall(node.value):
                    found[table].add(module)
    return found


def test_a_table_is_written_by_its_owner(trees: dict[str, ast.Module]) -> None:
    """Who may change a row is answered by one file, also for the lanes that each feature moves."""
    many = {table: len(modules) for table, modules in writers(trees).items() if len(modules) > 1}

    assert many == SHARED


def test_the_tables_of_the_core_are_written_by_its_rows(trees: dict[str, ast.Module]) -> None:
    """A stage calls verbs: its statements write no table."""
    found = {table: modules for table, modules in writers(trees).items() if modules}
    stages = {
        (table, module)
        for table, modules in found.items()
        for module in modules
        if module.startswith("core.") and not module.startswith("core.rows.")
    }

    assert {"lanes", "late_changes", "blocked_lanes"} <= found.keys()
    assert set() == stages


def test_lanes_are_written_by_few_statements(trees: dict[str, ast.Module]) -> None:
    """A lane's new head, order and end are each defined once, in at most twenty statements."""
    assert {"core.rows.lanes"} == writers(trees)["lanes"]
    text = [
        node.value
        for node in ast.walk(trees["core.rows.lanes"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert 20 >= sum(WRITES.findall(each).count("lanes") for each in text)
    assert 1 == sum(each.count("SELECT min(seq)\n  FROM _onceward_inbox") for each in text)


def test_a_second_writer_is_found() -> None:
    """A statement that is put together writes the table, too."""
    text = 'A = "UPDATE _onceward_lanes SET x = 1"\nB = f"DELETE FROM _onceward_lanes WHERE {A}"'

    assert {"lanes": {"one", "two"}} == writers(
        {"one": ast.parse(text), "two": ast.parse(text.partition("\n")[2])}
    )


def test_the_core_names_no_table_of_a_feature(trees: dict[str, ast.Module]) -> None:
    """
    What a feature stores is read by its own statements: the core works without it.

    What the core asks for each message, in a statement that the message needs anyway, belongs to
    the core, and features declare it by a verb of its rows.
    """
    owned = {
        table
        for table, modules in writers(trees).items()
        if all(module.startswith(("features.", "testing.")) for module in modules)
    }
    named = re.compile(r"\b_onceward_(\w+)")
    found = {
        (module, table)
        for module, tree in trees.items()
        if module.startswith("core.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for table in owned & set(named.findall(node.value))
    }

    assert {"runs", "steps"} <= owned
    assert set() == found


CREATED = re.compile(r"^CREATE TABLE _onceward_(\w+)", re.MULTILINE)


def schemas(root: Path) -> dict[str, str]:
    """Return the parts of the schema of an agent's file, by owner: the core or a feature."""
    package = root / "src" / "onceward"
    folders = [package / "core", *package.glob("features/*")]
    files = [each / f"{each.name}.sql" for each in folders]
    return {each.stem: each.read_text(encoding="utf-8") for each in files if each.exists()}


def test_a_table_is_created_beside_the_module_that_writes_it(
    trees: dict[str, ast.Module], root: Path
) -> None:
    """A table that a feature writes is in the file of that feature, all others in the core's."""
    created = {owner: CREATED.findall(text) for owner, text in schemas(root).items()}
    owners = {table: owner for owner, tables in created.items() for table in tables}
    found = {
        (table, owners[table], module)
        for table, modules in writers(trees).items()
        for module in modules
        if table in owners and module.startswith(("core.", "features."))
    }

    assert len(found) > 30
    assert [] == [each for each in sorted(found) if each[1] not in each[2].split(".")[:2]]


def test_the_schema_of_a_feature_needs_the_core_only(root: Path) -> None:
    """Its views and triggers read its own tables and the core's; the core's read no feature's."""
    parts = schemas(root)
    tables = {owner: set(CREATED.findall(text)) for owner, text in parts.items()}
    every = set().union(*tables.values())
    foreign = {
        owner: (every & set(re.findall(r"_onceward_(\w+)", text))) - tables[owner] - tables["core"]
        for owner, text in parts.items()
    }

    assert {owner: set() for owner in parts} == foreign
