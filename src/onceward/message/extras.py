"""Say which extra to install where a library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceward.errors import MissingExtra


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """
    Import the libraries of an extra in a block, for what is named.

    Raises:
        MissingExtra: one is not installed.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or library == "onceward":
            raise
        cure = f"pip install 'onceward[{extra}]'"
        msg = f"{what} needs {library}, which is not installed: {cure}"
        raise MissingExtra(msg, library) from error
