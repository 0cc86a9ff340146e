"""Give a handler what it depends on: values of functions that are called before it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from onceward.errors import InvalidArgument

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""Function to call by the function that a handler names; for tests."""
CONTEXT_NAMES: Final = frozenset({"ctx", "context"})


@dataclass(frozen=True, slots=True)
class Dependency:
    """The default of a parameter whose value a function returns."""

    call: Callable[..., Any]


def Depends(call: Callable[..., Any]) -> Any:  # noqa: N802 - stands where a value of any type may
    """
    Give a handler's parameter the value that *call* returns, before each call of the handler.

    ``def pay(invoice: Invoice, rates: Rates = Depends(load_rates))``, or
    ``rates: Annotated[Rates, Depends(load_rates)]``. *call* takes a parameter
    called ``ctx`` or ``context`` where it wants the context, and others that
    depend in turn. It is called once for a message, however many parameters name
    it. A generator yields its value, and what follows the ``yield`` runs when the
    handler has ended, before the commit; there a failure of the handler is raised.
    An ``async def`` serves async handlers only. Tests put other functions into
    ``agent.overrides``.
    """
    if not isinstance(call, Hashable):
        msg = f"Depends({_name(call)}): it cannot be hashed: give a function or a method"
        raise InvalidArgument(msg)
    return Dependency(call)


class Need(NamedTuple):
    """A parameter and the function whose value it gets; None for the context."""

    name: str
    call: Callable[..., Any] | None


class Dependencies(NamedTuple):
    """The dependencies of one handler, and the functions that tests put in their place."""

    needs: tuple[Need, ...]
    overrides: Overrides

    def sync(self, context: Any, stack: ExitStack) -> dict[str, Any]:
        """Return the values by parameter; generators are ended with *stack*."""
        made: dict[Any, Any] = {}

        def value(call: Callable[..., Any]) -> Any:
            if call not in made:
                target = self.overrides.get(call, call)
                given = arguments(_needs_of(target))
                made[call] = (
                    stack.enter_context(contextmanager(target)(**given))
                    if _yields(target)
                    else target(**given)
                )
            return made[call]

        def arguments(needs: tuple[Need, ...]) -> dict[str, Any]:
            return {n.name: context if n.call is None else value(n.call) for n in needs}

        return arguments(self.needs)

    async def on_loop(self, context: Any, stack: AsyncExitStack) -> dict[str, Any]:
        """Return the values by parameter, awaiting those of coroutines."""
        made: dict[Any, Any] = {}

        async def value(call: Callable[..., Any]) -> Any:
            if call not in made:
                target = self.overrides.get(call, call)
                given = await arguments(_needs_of(target))
                made[call] = await _value_on_loop(target, given, stack)
            return made[call]

        async def arguments(needs: tuple[Need, ...]) -> dict[str, Any]:
            return {n.name: context if n.call is None else await value(n.call) for n in needs}

        return await arguments(self.needs)


def call_with(needed: Dependencies, call: Callable[..., Any], body: Any, context: Any) -> Any:
    """Call a handler with what it depends on; no clean-up hides what the handler raised."""
    failure: BaseException | None = None
    with ExitStack() as stack:
        given = needed.sync(context, stack)
        try:
            return call(body, **given)
        except BaseException as error:
            failure = error
            raise
    raise failure  # a generator caught it


async def await_with(
    needed: Dependencies, call: Callable[..., Any], body: Any, context: Any
) -> Any:
    """Await a handler with what it depends on; no clean-up hides what the handler raised."""
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        given = await needed.on_loop(context, stack)
        try:
            return await call(body, **given)
        except BaseException as error:
            failure = error
            raise
    raise failure  # a generator caught it


async def _value_on_loop(
    target: Callable[..., Any], given: dict[str, Any], stack: AsyncExitStack
) -> Any:
    if inspect.isasyncgenfunction(_plain(target)):
        return await stack.enter_async_context(asynccontextmanager(target)(**given))
    if _yields(target):
        return stack.enter_context(contextmanager(target)(**given))
    found = target(**given)
    return await found if inspect.isawaitable(found) else found


def dependency_of(parameter: Parameter, annotation: Any) -> Dependency | None:
    """Return what a parameter depends on, by its default or its annotation."""
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if get_origin(annotation) is Annotated:
        return next((each for each in get_args(annotation) if isinstance(each, Dependency)), None)
    return None


def check(needs: tuple[Need, ...], *, is_async: bool) -> None:
    """Raise InvalidArgument where a dependency cannot be called, or not by this handler."""
    for need in needs:
        if need.call is not None:
            _check(need.call, is_async=is_async, path=())


def _check(call: Callable[..., Any], *, is_async: bool, path: tuple[Any, ...]) -> None:
    if call in path:
        names = " -> ".join(_name(each) for each in (*path, call))
        msg = f"dependencies lead back to themselves: {names}"
        raise InvalidArgument(msg)
    plain = _plain(call)
    if not is_async and (inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)):
        msg = f"dependency {_name(call)} is async: make the handler async def, too"
        raise InvalidArgument(msg)
    for need in _needs_of(call):
        if need.call is not None:
            _check(need.call, is_async=is_async, path=(*path, call))


@cache
def _needs_of(call: Callable[..., Any]) -> tuple[Need, ...]:
    """Return the parameters of a dependency that are filled; others keep their defaults."""
    try:
        found = inspect.signature(call, eval_str=True).parameters.values()
    except NameError:
        found = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        msg = f"Depends({_name(call)}): give it a function without arguments"
        raise InvalidArgument(msg) from error
    needs = []
    for each in found:
        known = dependency_of(each, each.annotation)
        if known is not None and each.kind is Parameter.POSITIONAL_ONLY:
            msg = (
                f"dependency {_name(call)}: parameter {each.name} depends on a function,"
                " so it must have a name"
            )
            raise InvalidArgument(msg)
        if known is not None:
            needs.append(Need(each.name, known.call))
        elif each.name in CONTEXT_NAMES:
            needs.append(Need(each.name, None))
        elif each.default is Parameter.empty and each.kind in _FILLED:
            msg = (
                f"dependency {_name(call)}: parameter {each.name} has no default and no Depends;"
                " the context is called ctx"
            )
            raise InvalidArgument(msg)
    return tuple(needs)


_FILLED: Final = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.KEYWORD_ONLY,
)


def _plain(call: Callable[..., Any]) -> Any:
    """Return the function below partials; of an object that is called, its method."""
    while isinstance(call, partial):
        call = call.func
    return call if inspect.isroutine(call) or isinstance(call, type) else type(call).__call__


def _yields(call: Callable[..., Iterator[Any] | AsyncIterator[Any]]) -> bool:
    return inspect.isgeneratorfunction(_plain(call))


def _name(call: Any) -> str:
    while isinstance(call, partial):
        call = call.func
    return str(getattr(call, "__name__", type(call).__name__))
