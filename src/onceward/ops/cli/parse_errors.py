"""Explain what is wrong with a command line in the words of the command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from onceward.message.names import quoted
from onceward.ops.cli.file_word import is_file

TYPES: Final[dict[type, str]] = {int: "a whole number", float: "a number", bool: "yes or no"}


def in_words(error: CycloptsError) -> str:
    """Return what is wrong, and what the command accepts."""
    match error:
        case UnusedCliTokensError():
            return _surplus(error.unused_tokens or [])
        case UnknownOptionError():
            return _no_option(error.token.keyword or error.token.value, error.argument_collection)
        case UnknownCommandError():
            return _no_option(" ".join(error.unused_tokens or []), ())
        case MissingArgumentError() if error.argument is not None:
            name = error.keyword or error.argument.name
            return f"{name} needs a value" if name.startswith("-") else f"{name} is missing"
        case CoercionError() if error.msg is not None:
            return f"{_name(error)}: {error.msg}"
        case CoercionError() if error.token is not None and error.target_type is not None:
            return f"{_name(error)} {_wanted(error.target_type)}, not {quoted(error.token.value)}"
    return str(error).rstrip(".")


def _surplus(tokens: list[str]) -> str:
    files = [token for token in tokens if is_file(token)]
    cure = f"; write --db {files[0]}, or the file right after the command" if files else ""
    return f"too many words: {' '.join(tokens)}{cure}"


def _no_option(given: str, arguments: Iterable[Any]) -> str:
    words = {name for each in arguments for name in each.names if not name.startswith("-")}
    if (word := given.partition("=")[0].lstrip("-").upper()) in words:
        return f"there is no option {given}: {word} is given without a name, as --help shows"
    near = get_close_matches(given, [name for each in arguments for name in each.names], 1)
    return f"there is no option {given}" + (f": did you mean {near[0]}?" if near else "")


def _name(error: CycloptsError) -> str:
    token = getattr(error, "token", None)
    if token is not None and token.keyword:
        return str(token.keyword)
    name = error.argument.name if error.argument is not None else "a word"
    return name if name.startswith("-") else name.upper()


def _wanted(kind: Any) -> str:
    """Return what an option of a type accepts; the type is a class, a Literal or a union."""
    choices = [str(each) for each in _choices(kind)]
    if choices:
        return f"is one of {', '.join(choices)}"
    names = [TYPES[each] for each in (kind, *get_args(kind)) if each in TYPES]
    return f"takes {names[0]}" if names else "needs another value"


def _choices(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for each in get_args(kind):
            yield from _choices(each)
