"""A constant that holds SQL is run by its own module only: others call the verb beside it."""

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

LAYERS = ("api.", "core.", "features.", "file.")
WORDS = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WITH|EXISTS)\b")


def test_a_sql_constant_is_run_by_its_own_module(trees: dict[str, ast.Module]) -> None:
    """Only a fragment, which other constants hold, is shared: what runs has one place."""
    constants = {module: set(_constants(tree)) for module, tree in trees.items()}
    found = sorted(
        f"{module}:{line} {name}"
        for module, tree in trees.items()
        if module.startswith(LAYERS)
        for line, name in _foreign(tree, constants)
    )

    assert [] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from onceward.core.lanes import READY\nrows(READY)", ["core.lanes.READY"]),
        ("from onceward.core import lanes\nrows(lanes.READY, 1)", ["core.lanes.READY"]),
        ("from onceward.core import lanes as each\nlisted = [each.READY]", ["core.lanes.READY"]),
        ("from onceward.core import lanes\nMINE = f'SELECT {lanes.READY}'", []),
        ("from onceward.core.lanes import READY\nMINE = 'SELECT ' + READY", []),
        ("from onceward.core import lanes\nrows(lanes.OTHER)", []),
    ],
)
def test_a_constant_that_another_module_runs_is_found(text: str, expected: list[str]) -> None:
    """Whether it is imported by name or with its module; in a further constant it may stand."""
    found = _foreign(ast.parse(text), {"core.lanes": {"READY"}})

    assert expected == [name for _, name in found]


CHANGES = re.compile(r"^\s*(?:UPDATE|DELETE FROM) _onceward_")
UNNAMED_MAX = 2


def test_a_change_names_its_parameters(trees: dict[str, ast.Module]) -> None:
    """From three parameters on, an UPDATE or DELETE says what each value is."""
    found = [
        f"{module} {name}"
        for module, tree in trees.items()
        if module.startswith(LAYERS)
        for names, value in _assigned(tree)
        if _unnamed(_text(value)) > UNNAMED_MAX
        for name in names
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("\nUPDATE _onceward_a SET b = ?, c = ?\n WHERE d = ?", 3),
        ("DELETE FROM _onceward_a WHERE b = :b AND c = :c AND d = :d", 0),
        ("UPDATE _onceward_a SET b = ?1, c = ?1 WHERE d = ?2", 0),
        ("INSERT INTO a (b, c, d) VALUES (?, ?, ?)", 0),
    ],
)
def test_a_parameter_without_a_name_is_found(sql: str, expected: int) -> None:
    """An INSERT names its columns above its values, in the same order."""
    assert expected == _unnamed(sql)


def _unnamed(sql: str) -> int:
    return len(re.findall(r"\?(?!\d)", sql)) if CHANGES.match(sql) else 0


def _constants(tree: ast.Module) -> Iterator[str]:
    """Yield the names in capitals of a module whose values hold SQL."""
    for names, value in _assigned(tree):
        if WORDS.search(_text(value)):
            yield from names


def _assigned(tree: ast.Module) -> Iterator[tuple[list[str], ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            yield [name for name in names if name.isupper()], node.value


def _text(value: ast.expr) -> str:
    nodes = [each for each in ast.walk(value) if isinstance(each, ast.Constant)]
    return "".join(each.value for each in nodes if isinstance(each.value, str))


def _foreign(tree: ast.Module, constants: Mapping[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Yield where a constant of another module stands outside of constants, and its name."""
    known = dict(_imported(tree, constants))
    inside = {id(each) for named, value in _assigned(tree) if named for each in ast.walk(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inside:
            name = known.get(ast.unparse(node))
            if name is not None:
                yield node.lineno, name


def _imported(tree: ast.Module, constants: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield how a module may call each constant that it imports, and the constant's full name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        home = f"{node.module}".removeprefix("onceward.")
        for alias in node.names:
            full, called = f"{home}.{alias.name}", alias.asname or alias.name
            if alias.name in constants.get(home, ()):
                yield called, full
            for name in constants.get(full, ()):
                yield f"{called}.{name}", f"{full}.{name}"
