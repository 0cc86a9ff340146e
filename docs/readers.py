"""Reads what the source says of itself: signatures, docstrings and the notes under fields."""  # noqa: INP001 - a script, no package

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

Function = ast.FunctionDef | ast.AsyncFunctionDef
RAISES = re.compile(r"^Raises:\n+(?P<rest>.*)", re.MULTILINE | re.DOTALL)
RAISED = re.compile(r"^ {4}(?P<names>[\w., ]+): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)
LONGEST = 96


@dataclass(frozen=True)
class Field:
    """A field or attribute: its name, its annotation and default as written, and the note under it."""

    name: str
    type: str
    default: str | None
    note: str


@cache
def _module(name: str) -> ast.Module:
    __import__(name)
    return ast.parse(inspect.getsource(sys.modules[name]))


def find(value: type) -> ast.ClassDef:
    """Return the class statement of *value*."""
    return next(n for n in ast.walk(_module(value.__module__)) if isinstance(n, ast.ClassDef) and n.name == value.__name__)


def methods(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the public methods and properties of a class, in the order of the source."""
    for item in node.body:
        if isinstance(item, Function) and not item.name.startswith("_") and "overload" not in decorators(item):
            yield item


def decorators(item: Function) -> list[str]:
    """Return the names of the decorators of a function."""
    return [ast.unparse(decorator) for decorator in item.decorator_list]


def init(node: ast.ClassDef) -> Function | None:
    """Return the constructor that the class itself writes."""
    return next((item for item in node.body if isinstance(item, Function) and item.name == "__init__"), None)


def signature(item: Function, name: str) -> str:
    """Return *item* as it is called, without self; a long one with a parameter on each line."""
    arguments = item.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        arguments = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields} | {"args": arguments.args[1:]})
    result = f" -> {ast.unparse(item.returns)}" if item.returns is not None and item.name != "__init__" else ""
    keyword = "await " if isinstance(item, ast.AsyncFunctionDef) and "asynccontextmanager" not in decorators(item) else ""
    line = f"{keyword}{name}({ast.unparse(arguments)}){result}"
    if len(line) <= LONGEST:
        return line
    return f"{keyword}{name}(\n{''.join(f'    {part},{chr(10)}' for part in _parts(arguments))}){result}"


def _parts(arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(plain, defaults, strict=True):
        yield _part(argument, default)
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _part(argument, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _part(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def fields(node: ast.ClassDef) -> list[Field]:
    """Return the annotated fields of a class body, with the notes that stand under them."""
    return _noted(node.body)


def attributes(node: ast.ClassDef) -> list[Field]:
    """Return the public attributes that the constructor sets, with the notes that stand under them."""
    made = init(node)
    return [] if made is None else _noted(made.body)


def _noted(body: list[ast.stmt]) -> list[Field]:
    found: list[Field] = []
    for index, item in enumerate(body):
        target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0] if isinstance(item, ast.Assign) else None
        name = _public(target)
        if name is None:
            continue
        kind = ast.unparse(item.annotation) if isinstance(item, ast.AnnAssign) else ""
        default = ast.unparse(item.value) if isinstance(item, ast.AnnAssign) and item.value is not None else None
        found.append(Field(name, kind, default, _note(body[index + 1 : index + 2])))
    return found


def _public(target: ast.expr | None) -> str | None:
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return None if target.attr.startswith("_") else target.attr
    if isinstance(target, ast.Name) and not target.id.startswith("_") and target.id != "model_config":
        return target.id
    return None


def _note(following: list[ast.stmt]) -> str:
    if following and isinstance(following[0], ast.Expr) and isinstance(following[0].value, ast.Constant):
        return prose(str(following[0].value.value))
    return ""


def docs(item: ast.ClassDef | Function) -> str:
    """Return a docstring as Markdown; what it raises becomes a list."""
    text = ast.get_docstring(item) or ""
    raises = RAISES.search(text)
    if raises is None:
        return prose(text)
    listed = [f"- `{names}`: {' '.join(said.split())}" for names, said in RAISED.findall(raises["rest"])]
    return "\n".join([prose(text[: raises.start()]).rstrip(), "", "Raises:", "", *(prose(line) for line in listed)])


def prose(text: str) -> str:
    """Return the text of a docstring as Markdown."""
    return inspect.cleandoc(text).replace("``", "`")
