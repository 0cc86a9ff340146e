"""Check a Python file by small rules, each a function from a syntax node to a remark."""

import ast
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LINES = 60
ARGUMENTS = 7
BRANCHES = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[ast.AST], str | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about one line."""

    line: int
    rule: str
    note: str


def long_function(node: ast.AST) -> str | None:
    """Notice what does not fit a screen."""
    if not isinstance(node, Function) or node.end_lineno is None:
        return None
    lines = node.end_lineno - node.lineno + 1
    return f"{node.name} has {lines} lines" if lines > LINES else None


def missing_docstring(node: ast.AST) -> str | None:
    """Notice a public name that promises nothing."""
    if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
        return None
    return (
        None if ast.get_docstring(node, clean=False) else f"{node.name} says nothing about itself"
    )


def too_many_arguments(node: ast.AST) -> str | None:
    """Notice a function with too many arguments."""
    if not isinstance(node, Function):
        return None
    count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
    return f"{node.name} takes {count} arguments" if count > ARGUMENTS else None


def many_branches(node: ast.AST) -> str | None:
    """Notice more cases than will be tested."""
    if not isinstance(node, Function):
        return None
    count = sum(
        isinstance(inner, ast.If | ast.For | ast.While | ast.ExceptHandler)
        for inner in ast.walk(node)
    )
    return f"{node.name} has {count} branches" if count > BRANCHES else None


def bare_except(node: ast.AST) -> str | None:
    """Notice what catches Ctrl-C, too."""
    return (
        "except: without a type"
        if isinstance(node, ast.ExceptHandler) and node.type is None
        else None
    )


def swallowed_exception(node: ast.AST) -> str | None:
    """Notice an error that is silently dropped."""
    if isinstance(node, ast.ExceptHandler) and all(
        isinstance(line, ast.Pass) for line in node.body
    ):
        return "an exception is caught and forgotten"
    return None


def mutable_default(node: ast.AST) -> str | None:
    """Notice the one list that all calls share."""
    if not isinstance(node, Function):
        return None
    defaults = (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
    shared = any(isinstance(each, ast.List | ast.Dict | ast.Set) for each in defaults)
    return f"{node.name} shares a default between its calls" if shared else None


def star_import(node: ast.AST) -> str | None:
    """Notice names that come from nowhere."""
    stars = isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    return "import *" if stars else None


RULES: tuple[Rule, ...] = (
    long_function,
    missing_docstring,
    too_many_arguments,
    many_branches,
    bare_except,
    swallowed_exception,
    mutable_default,
    star_import,
)


def review(path: Path) -> list[Finding]:
    """Return the findings of one file; an unreadable file is a finding, not an error."""
    try:
        source = importlib.util.decode_source(path.read_bytes())
    except OSError as error:
        return [Finding(1, "unreadable", type(error).__name__)]
    except (SyntaxError, UnicodeError) as error:
        return [Finding(1, "undecodable", f"{error}")]
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # an invalid escape is the author's, not ours
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Finding(getattr(error, "lineno", None) or 1, "unparsable", f"{error}")]
    return remarks(tree)


def remarks(tree: ast.AST) -> list[Finding]:
    """Return the findings of all rules on every node of *tree*."""
    return [
        Finding(getattr(node, "lineno", 1), rule.__name__.replace("_", " "), said)
        for node in ast.walk(tree)
        for rule in RULES
        if (said := rule(node)) is not None
    ]
