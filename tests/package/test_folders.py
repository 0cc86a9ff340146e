"""Each folder of the package says in its docstring what it is for and what it may import."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.syntax import statements

SENTENCE = re.compile(r"^Imports ([^.;]+)(?:; [^.]+)?\.(?: |$)", re.MULTILINE)
PUBLIC = "the public names"
"""What users import: ``onceward`` itself, and modules beside its folders such as ``types``."""
NOTHING = "no other folder"


@pytest.fixture(scope="module")
def folders(modules: dict[str, Path]) -> dict[str, str]:
    """Return the docstring of each folder below ``onceward`` by its path: ``core/send``."""
    return {
        module.replace(".", "/"): ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for module, path in modules.items()
        if path.name == "__init__.py" and module != "__init__"
    }


@pytest.fixture(scope="module")
def contracts(root: Path) -> list[dict[str, list[str]]]:
    """Return the contracts of imports in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, list[str]]] = project["tool"]["importlinter"]["contracts"]
    return found


@pytest.fixture(scope="module")
def floors(contracts: list[dict[str, list[str]]]) -> dict[str, int]:
    """Return for each layer the number of layers above it."""
    layers = next(each["layers"] for each in contracts if "onceward.api" in each.get("layers", []))
    return {
        name.strip().removeprefix("onceward."): floor
        for floor, line in enumerate(layers)
        for name in line.split("|")
    }


def test_every_folder_is_a_package(modules: dict[str, Path], folders: dict[str, str]) -> None:
    """No folder of modules goes without a docstring because it has no ``__init__``."""
    holding = {module.rpartition(".")[0].replace(".", "/") for module in modules}

    assert set() == holding - folders.keys() - {""}


def test_every_folder_says_what_it_is_for_and_what_it_imports(folders: dict[str, str]) -> None:
    """The first paragraph is one sentence of one line; one sentence begins with "Imports"."""
    assert [] == [
        name
        for name, said in folders.items()
        if "\n" in said.partition("\n\n")[0] or len(SENTENCE.findall(said)) != 1
    ]


def test_a_folder_imports_no_more_than_it_says(
    folders: dict[str, str], trees: dict[str, ast.Module], floors: dict[str, int]
) -> None:
    """Each import of its modules, types and late ones too, is of a folder that it names."""
    found = {
        f"{module} imports {target}"
        for module, tree in trees.items()
        for own in [_folder_of(module, folders)]
        if own
        for target in _targets(tree, folders, floors)
        if not _is_below(target, own)
        and not any(_is_below(target, name) for name in _named(folders[own]))
    }

    assert set() == found


def test_a_folder_names_only_what_the_contracts_allow(
    folders: dict[str, str], floors: dict[str, int], contracts: list[dict[str, list[str]]]
) -> None:
    """What it names exists, and is of a lower layer or its own; no feature names another one."""
    closed = {
        (source.removeprefix("onceward."), target.removeprefix("onceward."))
        for each in contracts
        for source in each.get("source_modules", [])
        for target in each.get("forbidden_modules", [])
    }
    wrong = [
        f"{folder} names {name}"
        for folder, said in folders.items()
        for name in _named(said)
        if not _may_name(folder, name, floors)
        or (folder.partition("/")[0], name.partition("/")[0]) in closed
        or name not in {*folders, PUBLIC}
    ]

    assert [] == wrong


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Do it.\n\nImports core, file and message.", ["core", "file", "message"]),
        ("Do it.\n\nImports core/send and file; never a feature.", ["core/send", "file"]),
        ("Do it.\n\nImports no other folder.", []),
        ("Do it.\n\nImports the public names and file.", ["the public names", "file"]),
    ],
)
def test_the_sentence_is_read(said: str, expected: list[str]) -> None:
    """Names end at a semicolon; "no other folder" is none."""
    assert expected == _named(said)


def _may_name(folder: str, name: str, floors: dict[str, int]) -> bool:
    layer, named = folder.partition("/")[0], name.partition("/")[0]
    if name == PUBLIC:
        return floors[layer] < floors["api"]
    return floors[layer] < floors[named] or (layer == named != "features")


def _named(said: str) -> list[str]:
    names = [name for part in SENTENCE.findall(said) for name in re.split(r", | and ", part)]
    return [] if names == [NOTHING] else names


def _is_below(target: str, folder: str) -> bool:
    return f"{target}/".startswith(f"{folder}/")


def _folder_of(module: str, folders: dict[str, str]) -> str:
    """Return the folder of a module, empty for one that lies beside the folders."""
    path = module.replace(".", "/")
    return path if path in folders else path.rpartition("/")[0]


def _targets(tree: ast.Module, folders: dict[str, str], floors: dict[str, int]) -> Iterator[str]:
    """Yield the folder of each import; layers of one module are open to all layers above."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in full:
            top, _, rest = name.partition(".")
            if top == "onceward" and (target := _target(rest, folders, floors)):
                yield target


def _target(name: str, folders: dict[str, str], floors: dict[str, int]) -> str:
    path = name.replace(".", "/")
    while path and path not in folders:
        path = path.rpartition("/")[0]
    if not path and name.partition(".")[0] not in floors:
        return PUBLIC
    return path
