"""Name the extra to install if a library is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from onceward.errors import MissingExtra


@contextmanager
def needs(extra: str, what: str, *, only: Collection[str] = ()) -> Iterator[None]:
    """
    Import the libraries of an extra in a block, for the named purpose.

    With *only*, the error of a library that is not among them is left unchanged.

    Raises:
        MissingExtra: a library is not installed.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        foreign = library == "onceward" or bool(only and library not in only)
        if foreign or isinstance(error, MissingExtra):
            raise
        cure = f"pip install 'onceward[{extra}]'"
        msg = f"{what} needs {library}, which is not installed: {cure}"
        raise MissingExtra(msg, library) from error
