"""Repeat a read-only command until an interrupt: ``--watch``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final

from onceward.ops.cli.durations import Span, converted
from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.options import said
from onceward.ops.cli.output import has_screen

CLEAR: Final = "\x1b[H\x1b[2J"
Watch = Annotated[
    Span | None,
    said("Print it repeatedly at this interval, until an interrupt.", converter=converted),
]


def watched(run: Callable[..., int]) -> Callable[..., int]:
    """Return a command with the option ``--watch``, made from one that prints its result."""

    @wraps(run)
    def again(*args: Any, watch: Span | None = None, **options: Any) -> int:
        if watch is None:
            return run(*args, **options)
        if watch <= 0:
            raise Usage("--watch must be more than 0")
        return repeat(lambda: run(*args, **options), watch)

    del again.__wrapped__
    option = Parameter("watch", Parameter.KEYWORD_ONLY, default=None, annotation=Watch)
    shape = signature(run)
    again.__signature__ = shape.replace(parameters=[*shape.parameters.values(), option])  # type: ignore[attr-defined]
    again.__annotations__ = {**run.__annotations__, "watch": Watch}
    return again


def repeat(look: Callable[[], int], every: float) -> int:
    """
    Repeat a command; on a screen each output replaces the last, else an empty line follows it.

    If one call fails, its exit code ends the loop.
    """
    first = True
    while True:
        if has_screen():
            sys.stdout.write(CLEAR)
        elif not first:
            sys.stdout.write("\n")
        first = False
        code = look()
        sys.stdout.flush()
        if code != DONE:
            return code
        time.sleep(every)
