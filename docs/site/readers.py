"""Read the source: signatures, docstrings and the notes under fields."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef
ClassDef = ast.ClassDef
RAISES = re.compile(r"^Raises:\n+(?P<rest>.*)", re.MULTILINE | re.DOTALL)
RAISED = re.compile(r"^ {4}(?P<names>[\w., ]+): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)
LONGEST = 96


@dataclass(frozen=True)
class Field:
    """A field or attribute: its name, its annotation as written, and the note under it."""

    name: str
    type: str
    note: str


ASYNC_MODULES = (
    "onceward.api.aio",
    "onceward.api.handler_postbox",
    "onceward.features.polling.aio",
    "onceward.features.channels.aio",
    "onceward.features.limits.aio",
    "onceward.features.mailboxes.aio",
    "onceward.features.groups.aio",
    "onceward.features.pools.aio",
    "onceward.features.schedules.aio",
    "onceward.features.runs.aio",
    "onceward.features.runs.run",
    "onceward.core.handle.message",
    "onceward.features.batches.context",
    "onceward.core.handle.context",
    "onceward.core.handle.output",
    "onceward.features.requests.verbs",
)
"""Modules of async classes: their names for the sync ones are looked up in this order."""


@cache
def _module(name: str) -> ast.Module:
    __import__(name)
    return ast.parse(inspect.getsource(sys.modules[name]))


def find(value: type) -> ast.ClassDef:
    """Return the class statement of *value*."""
    return next(
        n
        for n in ast.walk(_module(value.__module__))
        if isinstance(n, ast.ClassDef) and n.name == value.__name__
    )


def find_function(value: Any) -> Function:
    """Return the def statement of *value*, a function of a module."""
    module = _module(value.__module__)
    return next(n for n in module.body if isinstance(n, Function) and n.name == value.__name__)


def methods(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the public methods and properties of a class, in the order of the source."""
    for statement in node.body:
        item = _made_awaitable(statement) or statement
        if (
            isinstance(item, Function)
            and not item.name.startswith("_")
            and "overload" not in decorators(item)
        ):
            yield item


def _made_awaitable(statement: ast.stmt) -> ast.AsyncFunctionDef | None:
    """Return ``join = awaitable(Channel.join)`` as the method it makes, None for all others."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    call = statement.value
    if not ast.unparse(call.func).startswith("awaitable"):
        return None
    owner, _, name = ast.unparse(call.args[-1]).partition(".")
    sync = next(item for item in _statements_of(owner) if _is_method(item, name))
    result = call.args[0] if len(call.args) > 1 else sync.returns
    return ast.AsyncFunctionDef(
        name=ast.unparse(statement.targets[0]),
        args=sync.args,
        body=sync.body,
        decorator_list=[],
        returns=result,
    )


def _is_method(item: ast.AST, name: str) -> TypeGuard[Function]:
    return isinstance(item, Function) and item.name == name and "overload" not in decorators(item)


def _statements_of(owner: str) -> Iterator[ast.AST]:
    """Yield the statements of a sync class, by the name in the async modules, and of its bases."""
    for module in ASYNC_MODULES:
        found = getattr(importlib.import_module(module), owner, None)
        if found is not None:
            ours = [each for each in found.__mro__ if each.__module__.startswith("onceward")]
            for each in ours:
                yield from ast.walk(find(each))
            return
    raise LookupError(owner)


def bases(node: ast.ClassDef) -> list[str]:
    """Return the names of the classes that *node* is built on."""
    return [ast.unparse(base).partition("[")[0] for base in node.bases]


def decorators(item: Function) -> list[str]:
    """Return the names of the decorators of a function."""
    return [ast.unparse(decorator) for decorator in item.decorator_list]


def init(node: ast.ClassDef) -> Function | None:
    """Return the constructor that the class itself writes."""
    return next(
        (item for item in node.body if isinstance(item, Function) and item.name == "__init__"), None
    )


def signature(item: Function, name: str) -> str:
    """Return *item* as it is called, without self; a long one with a parameter on each line."""
    parts = list(_parts(item.args))
    if parts and parts[0] in {"self", "cls"}:
        del parts[0]
    before, result = _frame(item)
    line = f"{before}{name}({', '.join(parts)}){result}"
    if len(line) <= LONGEST:
        return line
    listed = "".join(f"    {part},\n" for part in parts)
    return f"{before}{name}(\n{listed}){result}"


def _frame(item: Function) -> tuple[str, str]:
    """Return the text before and after a call: how it is awaited, and what it returns."""
    asynchronous = isinstance(item, ast.AsyncFunctionDef)
    result = "" if item.returns is None or item.name == "__init__" else ast.unparse(item.returns)
    if any(name.endswith("contextmanager") for name in decorators(item)) or result.startswith(
        "Abstract"
    ):
        inner = result.partition("[")[2].removesuffix("]")
        return ("async with " if asynchronous or "Async" in result else "with "), f" as {inner}"
    if result.startswith("AsyncIterator"):
        return "async for … in ", f" -> {result}"
    return ("await " if asynchronous else ""), (f" -> {result}" if result else "")


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
    return _noted(node.body, ast.Name)


def attributes(node: ast.ClassDef) -> list[Field]:
    """Return the public attributes of the constructor, and noted ones of other methods."""
    found: list[Field] = []
    for item in node.body:
        if isinstance(item, Function):
            listed = _noted(item.body, ast.Attribute)
            found += (
                listed if item.name == "__init__" else [field for field in listed if field.note]
            )
    return found


def _noted(body: list[ast.stmt], kind: type[ast.expr]) -> list[Field]:
    found: list[Field] = []
    for index, item in enumerate(body):
        target = (
            item.target
            if isinstance(item, ast.AnnAssign)
            else item.targets[0]
            if isinstance(item, ast.Assign)
            else None
        )
        name = _public(target) if isinstance(target, kind) else None
        if name is None:
            continue
        annotation = ast.unparse(item.annotation) if isinstance(item, ast.AnnAssign) else ""
        found.append(Field(name, annotation, _note(body[index + 1 : index + 2])))
    return found


def _public(target: ast.expr | None) -> str | None:
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return None if target.attr.startswith("_") else target.attr
    if (
        isinstance(target, ast.Name)
        and not target.id.startswith("_")
        and target.id != "model_config"
    ):
        return target.id
    return None


def _note(following: list[ast.stmt]) -> str:
    if (
        following
        and isinstance(following[0], ast.Expr)
        and isinstance(following[0].value, ast.Constant)
    ):
        return prose(str(following[0].value.value))
    return ""


def docs(item: ast.ClassDef | Function) -> str:
    """Return a docstring as Markdown; what it raises becomes a list."""
    text = ast.get_docstring(item) or ""
    raises = RAISES.search(text)
    if raises is None:
        return prose(text)
    listed = [
        f"- `{names}`: {' '.join(said.split())}" for names, said in RAISED.findall(raises["rest"])
    ]
    return "\n".join(
        [
            prose(text[: raises.start()]).rstrip(),
            "",
            "Raises:",
            "",
            *(prose(line) for line in listed),
        ]
    )


def result(item: Function) -> str:
    """Return the return annotation of a function or property, as written."""
    return "" if item.returns is None else ast.unparse(item.returns)


def prose(text: str) -> str:
    """Return the text of a docstring as Markdown."""
    return inspect.cleandoc(text).replace("``", "`")


def first_line(file: Path) -> str:
    """Return the first line of a file's docstring."""
    return prose(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition(
        "\n"
    )[0]


def constant(source: str, name: str) -> Any:
    """Return the value that *source* gives to *name*, without running it."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)
