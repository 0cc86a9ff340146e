"""Turn a function into a command: open its file, call it, print its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, cleandoc, signature
from typing import Any, Final, get_type_hints

from onceward.file.read_only import FileReader
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.output import dated, document, label, show, show_one
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import Answer, Where, open_box

Found = int | Mapping[str, Any] | Iterable[Any] | None
SECTION: Final = re.compile(r"\n\n(?=Example:|Args:)")


def command(*columns: str) -> Callable[[Callable[..., Found]], Callable[..., int]]:
    """
    Return a decorator that turns a function of a box or a reader into a command.

    The command has the other parameters of the function, and ``where`` unless the function has one.
    It opens the file that ``where`` names, calls the function, prints the result and returns the
    exit code. The help text names the columns if there are several.
    """

    def decorate(function: Callable[..., Found]) -> Callable[..., int]:
        hints = get_type_hints(function, include_extras=True)
        first, *others = signature(function).parameters.values()
        own = next((each for each in others if each.name == "where"), None)
        target = own or Parameter("where", Parameter.KEYWORD_ONLY, default=Where())
        if own is None:
            others.append(target)
        hints = {"where": Where} | hints | {"return": int}
        opened: Callable[..., Any] = views if hints.pop(first.name) is FileReader else open_box

        @wraps(function)
        def run(*args: Any, where: Where = target.default, **options: Any) -> int:
            named = {"where": where} if own else {}
            with opened(where.path()) as file:
                return emit(function(file, *args, **options, **named), columns, where)

        del run.__wrapped__
        run.__annotations__ = hints
        run.__signature__ = signature(function).replace(parameters=others)  # type: ignore[attr-defined]
        run.__doc__ = _documented(function.__doc__ or "", columns)
        return run

    return decorate


def emit(found: Found, columns: Sequence[str], answer: Answer) -> int:
    """
    Print the result of a command and return the exit code.

    A mapping is one item: without columns all of it is printed, with columns only those, as a line,
    and all of it with ``--json``. Anything else is rows. A single column has no header.
    """
    form = "lines" if len(columns) == 1 and answer.style == "table" else answer.style
    match found:
        case int():
            return found
        case Mapping() if not columns:
            show_one(found, form)
        case Mapping() if answer.json:
            document(dated(found))
        case Mapping():
            show([found], columns, form)
        case None:
            pass
        case _:
            show(list(found), columns, form)
    return DONE


def picked(each: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the named attributes of an object as a row."""
    return {name: getattr(each, name) for name in names}


def _documented(text: str, columns: Sequence[str]) -> str:
    """Return a docstring with the columns named in front of its arguments."""
    doc = cleandoc(text)
    if len(columns) < 2:  # noqa: PLR2004 - one column is named by the summary
        return doc
    told, *rest = SECTION.split(doc, maxsplit=1)
    return "\n\n".join([told, f"Columns: {', '.join(map(label, columns))}.", *rest])
