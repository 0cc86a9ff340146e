"""
Give handlers their contexts: those of the core and of runs, with the verbs of all features.

The features give the verbs; only type checkers read the class statements.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from onceward.api.features import CALLS
from onceward.core.handle import context
from onceward.core.handle.call import Complete
from onceward.core.run.async_face import AsyncFace

if TYPE_CHECKING:
    from onceward.api.handler_postbox import AsyncHandlerPostbox, HandlerPostbox
    from onceward.features.groups.verbs import AsyncWithGroups, WithGroups
    from onceward.features.requests.verbs import AsyncWithReplies, WithReplies
    from onceward.features.runs import run
    from onceward.features.steps.verbs import AsyncWithSteps, WithSteps

    class Context(context.Context, WithSteps, WithReplies, WithGroups):
        """Writes and messages of a handler; see ``onceward.Context``."""

        @property
        def postbox(self) -> HandlerPostbox:
            """The postbox of the handler, to read."""

    class AsyncContext(AsyncWithSteps, AsyncWithReplies, AsyncWithGroups, context.AsyncContext):
        """Writes and messages of an ``async def`` handler; see ``onceward.AsyncContext``."""

        @property
        def postbox(self) -> AsyncHandlerPostbox:
            """The postbox of the handler, to read."""

    class Run(run.Run, WithSteps, WithReplies, WithGroups):
        """One call of a session's handler; see ``onceward.Run``."""

        @property
        def postbox(self) -> HandlerPostbox:
            """The postbox of the run, to read."""

    class AsyncRun(AsyncWithSteps, AsyncWithReplies, AsyncWithGroups, run.AsyncRun):
        """One call of a session's ``async def`` handler; see ``onceward.AsyncRun``."""

        @property
        def postbox(self) -> AsyncHandlerPostbox:
            """The postbox of the run, to read."""


@cache
def _completed(plain: type[Any]) -> type[Any]:
    given = [each.verbs for each in CALLS if each.verbs is not None]
    awaited = issubclass(plain, AsyncFace)
    verbs: list[Any] = [(each.awaited if awaited else each.plain).load() for each in given]
    names = {"__module__": plain.__module__, "__doc__": plain.__doc__}
    return type(plain.__name__, (plain, *verbs), names)


complete: Final = cast("Complete", _completed)
"""Returns a class of contexts with the verbs of all features; it has the name of the plain one."""


def __getattr__(name: str) -> Any:
    """Complete a class on first use; the feature of runs may be absent."""
    if name in {"Context", "AsyncContext"}:
        found = complete(getattr(context, name))
    elif name in {"Run", "AsyncRun"}:
        from onceward.features.runs import run  # noqa: PLC0415 - rarely needed

        found = complete(getattr(run, name))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
