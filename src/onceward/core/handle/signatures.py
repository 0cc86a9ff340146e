"""Check a handler's parameters when it is registered, and fill its dependencies."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import Parameter
from types import FunctionType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from pydantic import PydanticSchemaGenerationError

from onceward.core.handle.context import AsyncContext, AsyncTransaction, Context
from onceward.core.handle.message import AsyncMessage, Message
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.message.body import message_type
from onceward.message.handler_options import PLAIN_RULES, HandlerRules
from onceward.message.validators import adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function of an agent and the messages it handles."""

    pattern: str
    call: Callable[..., Any]
    body: Any
    """Type of the payload, from the annotation of the first parameter; None takes plain values."""
    takes_context: bool
    is_async: bool
    rules: HandlerRules = PLAIN_RULES
    dependencies: Dependencies | None = None
    around: tuple[Sequence[Around], ...] = ()
    """Generator functions of its agents' ``around``, those of the outer agent first."""

    @property
    def attempts(self) -> int | None:
        """Attempts before a message becomes a dead letter; None: as in the retry policy."""
        return self.rules.attempts

    @property
    def timeout(self) -> float | None:
        """Maximum seconds of a call; None: as in the settings."""
        return self.rules.timeout


class Handlers:
    """The handlers of one agent, and what else its code declares."""

    name: str
    unhandled: Literal["dead", "wait"]
    handlers: list[Handler]
    sessions: list[Any]
    """Functions that handle whole sessions."""
    serves: tuple[str, ...]
    """Pools of which it is a member."""
    _schedules: set[str]
    """Names of schedules."""
    _awaited: set[str]
    """Types that handlers wait for."""


WITH_CONTEXT: Final = 2
"""Number of parameters of a handler with a context."""
OURS: Final = (Context, AsyncContext, Message, AsyncMessage, Transaction, AsyncTransaction)
"""Classes as which no body can be read."""
Around = Callable[[Any], Iterator[None]]
"""A generator function of the context; it yields once, where the handler is called."""
CONTEXT_NAMES: Final = frozenset({"ctx", "context"})
BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class HandlerSignature(NamedTuple):
    """The arguments of a handler, and how to call it."""

    body: Any
    """Type as which the body is read; None for plain values."""
    takes_context: bool
    is_async: bool
    needs: tuple[Need, ...] = ()
    """Parameters that depend on other functions, then also the context's."""


def message_signature(call: Callable[..., Any], model: type | None) -> HandlerSignature:
    """
    Return the signature of a message handler; *model* is the class that it is registered for.

    Raises:
        InvalidArgument: it cannot be called with body and context; the error shows a valid
        signature.

    """
    is_async, refuse = is_coroutine(call), partial(refuse_handler, call, _shown(call, model))
    parameters, needs = parameters_of(call, refuse)
    if not 1 <= len(required(parameters)) <= WITH_CONTEXT:
        refuse("it must take the message and, if it wants, a context")
    check(needs, is_async=is_async)
    first, *others = parameters
    body = _body(first, call, model, refuse)
    takes_context = bool(others) and is_context(others[0], call)
    if takes_context:
        check_given(others[0], call, AsyncContext if is_async else Context, refuse)
    if needs and takes_context:  # a parameter between them may be a dependency
        return HandlerSignature(body, False, is_async, (*needs, Need(others[0].name, None)))  # noqa: FBT003
    return HandlerSignature(body, takes_context, is_async, needs)


def is_coroutine(call: Callable[..., Any]) -> bool:
    """Return whether a function, a partial of one or a callable object is ``async def``."""
    plain = _unwrapped(call)
    if inspect.iscoroutinefunction(plain):
        return True
    return not isinstance(plain, FunctionType) and inspect.iscoroutinefunction(
        getattr(plain, "__call__", None)  # noqa: B004 - the method itself is examined
    )


Refuse = Callable[[str], NoReturn]


def refuse_handler(call: Callable[..., Any], shown: str, why: str) -> NoReturn:
    """Raise InvalidArgument for a handler, with the signature that it should have."""
    msg = f"handler {name_of(call)}: {why}: write {shown}"
    raise InvalidArgument(msg)


def _shown(call: Callable[..., Any], model: type | None) -> str:
    """Return the signature that a handler should have, as its author writes it."""
    body, is_async = "dict" if model is None else model.__name__, is_coroutine(call)
    name = "body" if model is None else message_type(model).rpartition(".")[2]
    first = name if name.isidentifier() else "body"
    context = "AsyncContext" if is_async else "Context"
    return f"{'async ' * is_async}def {name_of(call)}({first}: {body}, ctx: {context})"


def name_of(call: Callable[..., Any]) -> str:
    """Return the name of a function, also inside partials."""
    plain = _unwrapped(call)
    return getattr(plain, "__name__", None) or type(plain).__name__


def _unwrapped(call: Callable[..., Any]) -> Any:
    """Return the function inside partials."""
    while isinstance(call, partial):
        call = call.func
    return call


def parameters_of(
    call: Callable[..., Any], refuse: Refuse
) -> tuple[list[Parameter], tuple[Need, ...]]:
    """Return the positional parameters, and those that depend on functions."""
    plain = _unwrapped(call)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        refuse("it has a yield, so calling it would do nothing")
    found, needs = list[Parameter](), list[Need]()
    for each in inspect.signature(call).parameters.values():
        annotation = annotation_of(each, call)
        if isinstance(annotation, Unresolved) and "Depends(" in annotation.text:
            refuse(f"annotation {annotation.text!r} cannot be resolved at registration")
        dependency = dependency_of(each, annotation)
        if dependency is None:
            found.append(each)
        elif each.kind is Parameter.POSITIONAL_ONLY:
            refuse(f"parameter {each.name} depends on a function, so it must have a name")
        else:
            needs.append(Need(each.name, dependency.call))
    named = [
        each.name
        for each in found
        if each.kind is Parameter.KEYWORD_ONLY and each.default is Parameter.empty
    ]
    if named:
        refuse(f"parameter {named[0]} has no default, and it gets no value")
    placed = [each for each in found if each.kind in BY_POSITION]
    placed = placed or [each for each in found if each.kind is Parameter.VAR_POSITIONAL]
    return placed, tuple(needs)


def required(parameters: list[Parameter]) -> list[Parameter]:
    """Return the parameters that a call must fill, at least the first."""
    return parameters[:1] + [each for each in parameters[1:] if each.default is Parameter.empty]


class Unresolved(NamedTuple):
    """An annotation whose name has no value when the handler is registered."""

    text: str


def annotation_of(
    parameter: Parameter, call: Callable[..., Any], known: tuple[type, ...] = OURS
) -> Any:
    """Return the value of an annotation; for *known* classes the name is enough."""
    if parameter.annotation is Parameter.empty:
        return None
    plain = _unwrapped(call)
    function = getattr(inspect.unwrap(plain), "__func__", inspect.unwrap(plain))
    function = function if hasattr(function, "__globals__") else type(function).__call__
    try:
        holder = SimpleNamespace(__annotations__={"it": parameter.annotation})
        names = getattr(function, "__globals__", {})
        return type_hints(holder, globalns=names, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        text = str(parameter.annotation).rpartition(".")[2].partition("[")[0]
        by_name = {each.__name__: each for each in known}
        return by_name.get(text, Unresolved(str(parameter.annotation)))


def classes_of(annotation: Any) -> tuple[type, ...] | None:
    """Return the classes that an annotation allows; None if unknown."""
    if get_origin(annotation) is Annotated:
        return classes_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [classes_of(each) for each in get_args(annotation)]
        return None if None in parts else tuple(one for part in parts if part for one in part)
    plain = get_origin(annotation) or annotation
    certain = isinstance(plain, type) and plain not in (object, Any)
    return (plain,) if certain and not getattr(plain, "_is_protocol", False) else None


def is_context(parameter: Parameter, call: Callable[..., Any]) -> bool:
    """Return whether the second parameter is the context; with a default it may be the user's."""
    if parameter.default is Parameter.empty or parameter.name in CONTEXT_NAMES:
        return True
    annotation = annotation_of(parameter, call)
    if annotation is None:
        return parameter.default is None
    return any(issubclass(each, Context | AsyncContext) for each in classes_of(annotation) or ())


def check_given(
    parameter: Parameter,
    call: Callable[..., Any],
    given: type,
    refuse: Refuse,
    known: tuple[type, ...] = OURS,
) -> None:
    """Refuse a parameter whose annotation does not allow its value."""
    classes = classes_of(annotation_of(parameter, call, known))
    if classes is not None and not any(_is_allowed(given, each) for each in classes):
        told = " | ".join(each.__name__ for each in classes)
        refuse(f"parameter {parameter.name} is annotated {told}, but gets {given.__name__}")


def _is_allowed(given: type, annotated: type) -> bool:
    """Return whether a class is annotated, one that it derives from, or the one completing it."""
    completes = issubclass(annotated, given) and annotated.__name__ == given.__name__
    return completes or issubclass(given, annotated)


def _body(
    parameter: Parameter, call: Callable[..., Any], model: type | None, refuse: Refuse
) -> Any:
    """Return the type as which the body is read: the annotation's, or the registered one."""
    annotation = annotation_of(parameter, call)
    if annotation is None:
        if parameter.name in CONTEXT_NAMES:
            refuse(f"the first parameter is the message, but is called {parameter.name}")
        return model
    if isinstance(annotation, Unresolved):
        if model is None:
            refuse(f"annotation {annotation.text!r} cannot be resolved at registration")
        return model
    classes = classes_of(annotation)
    if any(issubclass(each, OURS) for each in classes or ()):
        refuse("the first parameter gets the message's body")
    if model is not None and classes is not None:
        if model not in classes and any(issubclass(model, each) for each in classes):
            return model  # reading it as its base class would lose fields
        if not any(each is model or message_type(each) == message_type(model) for each in classes):
            refuse(f"it is registered for {model.__name__}, but takes another type")
    check_readable(annotation, refuse)
    return annotation


def check_readable(annotation: Any, refuse: Refuse) -> None:
    """Refuse a type that no body can be validated as."""
    try:
        adapter(annotation)
    except PydanticSchemaGenerationError:
        refuse(f"no body can be read as {getattr(annotation, '__name__', annotation)}")
    except Exception:  # noqa: BLE001 - a model that is completed later, or an unhashable type
        return


def check_around(work: Around) -> None:
    """Raise InvalidArgument if *work* is not a generator function."""
    if not inspect.isgeneratorfunction(_plain(work)):
        msg = (
            f"agent.around takes a generator function, not {name_of(work)}: def f(ctx) with one"
            " yield where the handler is called, also for async handlers"
        )
        raise InvalidArgument(msg)


# -- dependencies ---------------------------------------------------------------------------

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""Replacement functions by the functions that handlers name; for tests."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """The default of a parameter that gets a function's value."""

    call: Callable[..., Any]


def Depends(call: Callable[..., Any]) -> Any:  # noqa: N802 - used as a default of any type
    """
    Fill a handler's parameter with the value of *call*, before each call of the handler.

    ``def pay(invoice: Invoice, rates: Rates = Depends(load_rates))``, or
    ``rates: Annotated[Rates, Depends(load_rates)]``. *call* may have a parameter called ``ctx`` or
    ``context``, which gets the context, and dependencies of its own. It is called once per message,
    however many parameters name it. A generator yields its value; the code after the ``yield`` runs
    when the handler has ended, before the commit, and a failure of the handler is raised there. An
    ``async def`` works for async handlers only. Tests put replacements into ``agent.overrides``.
    """
    if not isinstance(call, Hashable):
        msg = f"Depends({name_of(call)}): it is not hashable: give a function or a method"
        raise InvalidArgument(msg)
    return Dependency(call)


class Need(NamedTuple):
    """A parameter and the function that fills it; None for the context."""

    name: str
    call: Callable[..., Any] | None


class Dependencies(NamedTuple):
    """The dependencies of one handler, and the tests' replacements for them."""

    needs: tuple[Need, ...]
    overrides: Overrides

    def sync(self, context: Any, stack: ExitStack) -> dict[str, Any]:
        """Return the values by parameter; *stack* ends generators."""
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
    """Call a handler with its dependencies; no clean-up hides the handler's exception."""
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
    """Await a handler with its dependencies; no clean-up hides the handler's exception."""
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
    """Return the dependency of a parameter, by its default or its annotation."""
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if get_origin(annotation) is Annotated:
        return next((each for each in get_args(annotation) if isinstance(each, Dependency)), None)
    return None


def check(needs: tuple[Need, ...], *, is_async: bool) -> None:
    """Raise InvalidArgument if a dependency cannot be called, or not by this handler."""
    for need in needs:
        if need.call is not None:
            _check(need.call, is_async=is_async, path=())


def _check(call: Callable[..., Any], *, is_async: bool, path: tuple[Any, ...]) -> None:
    if call in path:
        names = " -> ".join(name_of(each) for each in (*path, call))
        msg = f"circular dependencies: {names}"
        raise InvalidArgument(msg)
    plain = _plain(call)
    if not is_async and (inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)):
        msg = f"dependency {name_of(call)} is async: make the handler async def"
        raise InvalidArgument(msg)
    for need in _needs_of(call):
        if need.call is not None:
            _check(need.call, is_async=is_async, path=(*path, call))


@lru_cache(maxsize=1024)
def _needs_of(call: Callable[..., Any]) -> tuple[Need, ...]:
    """Return the parameters of a dependency to fill; others keep their defaults."""
    try:
        found = inspect.signature(call, eval_str=True).parameters.values()
    except NameError:
        found = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        msg = f"Depends({name_of(call)}): give it a function without arguments"
        raise InvalidArgument(msg) from error
    needs = []
    for each in found:
        known = dependency_of(each, each.annotation)
        if known is not None and each.kind is Parameter.POSITIONAL_ONLY:
            msg = (
                f"dependency {name_of(call)}: parameter {each.name} depends on a function,"
                " so it must have a name"
            )
            raise InvalidArgument(msg)
        if known is not None:
            needs.append(Need(each.name, known.call))
        elif each.name in CONTEXT_NAMES:
            needs.append(Need(each.name, None))
        elif each.default is Parameter.empty and each.kind in _FILLED:
            msg = (
                f"dependency {name_of(call)}: parameter {each.name} has no default and no Depends;"
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
    """Return the function inside partials; for a callable object, its method."""
    while isinstance(call, partial):
        call = call.func
    return call if inspect.isroutine(call) or isinstance(call, type) else type(call).__call__


def _yields(call: Callable[..., Iterator[Any] | AsyncIterator[Any]]) -> bool:
    return inspect.isgeneratorfunction(_plain(call))
