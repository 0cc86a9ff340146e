"""Ask the questions of the catalogue through an open postbox, off the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio.to_thread

from onceward import AsyncPostbox, Postbox
from onceward.ops.views.asking import Source

P = ParamSpec("P")
T = TypeVar("T")


class BoxSource:
    """A postbox for queries."""

    def __init__(self, box: Postbox) -> None:
        self._box = box

    @property
    def path(self) -> Path:
        """The file of the postbox."""
        return self._box.file.path

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return self._box.query(sql, bindings)


async def ask(
    box: AsyncPostbox,
    question: Callable[Concatenate[Source, P], T],
    *args: P.args,
    **named: P.kwargs,
) -> T:
    """Return the answer to a question."""
    asked = partial(question, BoxSource(box._plain), *args, **named)
    return await anyio.to_thread.run_sync(asked)
