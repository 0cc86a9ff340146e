"""Check the signature of a handler when it is registered, against what it will be given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from inspect import Parameter
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Final, NamedTuple, NoReturn, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from pydantic import PydanticSchemaGenerationError

from onceward.core.handle.context import AsyncContext, AsyncTransaction, Context
from onceward.core.handle.depends import Need, check, dependency_of
from onceward.core.handle.message import AsyncMessage, Message
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.message.body import message_type
from onceward.message.lossless import adapter

WITH_CONTEXT: Final = 2
"""Number of parameters of a handler that takes a context beside its message."""
OURS: Final = (Context, AsyncContext, Message, AsyncMessage, Transaction, AsyncTransaction)
"""Classes that no body is read as."""
CONTEXT_NAMES: Final = frozenset({"ctx", "context"})
BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class HandlerSignature(NamedTuple):
    """Arguments of a handler, and how it is called."""

    body: Any
    """Type that the body is read as; None takes plain values."""
    takes_context: bool
    is_async: bool
    needs: tuple[Need, ...] = ()
    """Parameters that depend on other functions, and then that of the context, too."""


def message_signature(call: Callable[..., Any], model: type | None) -> HandlerSignature:
    """
    Return the signature of a handler of messages; *model* is the class that it is registered for.

    Raises:
        InvalidArgument: it cannot be called with body and context; the error shows what can.

    """
    is_async, refuse = is_coroutine(call), partial(_refuse, call, _shown(call, model))
    parameters, needs = _parameters(call, refuse)
    if not 1 <= len(_required(parameters)) <= WITH_CONTEXT:
        refuse("it must take the message and, if it wants, a context")
    check(needs, is_async=is_async)
    first, *others = parameters
    body = _body(first, call, model, refuse)
    takes_context = bool(others) and _is_context(others[0], call)
    if takes_context:
        _check_given(others[0], call, AsyncContext if is_async else Context, refuse)
    if needs and takes_context:  # a place between them may be one that depends
        return HandlerSignature(body, False, is_async, (*needs, Need(others[0].name, None)))  # noqa: FBT003
    return HandlerSignature(body, takes_context, is_async, needs)


def check_session_signature(call: Callable[..., Any]) -> bool:
    """
    Check the signature of a session's handler; return whether it is a coroutine function.

    Raises:
        InvalidArgument: it cannot be called with the run alone; the error shows what can.

    """
    from onceward.features.runs.run import AsyncRun, Run  # noqa: PLC0415 - rarely needed

    is_async = is_coroutine(call)
    given = AsyncRun if is_async else Run
    shown = f"{'async ' * is_async}def {_name(call)}(run: {given.__name__})"
    refuse = partial(_refuse, call, shown)
    parameters, needs = _parameters(call, refuse)
    if needs:
        refuse(f"parameter {needs[0].name} depends on a function, which a run does not call")
    if not parameters or len(_required(parameters)) > 1:
        refuse("it must take the run, and nothing else")
    _check_given(parameters[0], call, given, refuse, (Run, AsyncRun))
    return is_async


def is_coroutine(call: Callable[..., Any]) -> bool:
    """Return whether a function, a partial of one or a callable object is ``async def``."""
    plain = _unwrapped(call)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(
        getattr(plain, "__call__", None)  # noqa: B004 - the method is what is looked at
    )


Refuse = Callable[[str], NoReturn]


def _refuse(call: Callable[..., Any], shown: str, why: str) -> NoReturn:
    msg = f"handler {_name(call)}: {why}: write {shown}"
    raise InvalidArgument(msg)


def _shown(call: Callable[..., Any], model: type | None) -> str:
    """Return the signature that a handler should have, as its author writes it."""
    body, is_async = "dict" if model is None else model.__name__, is_coroutine(call)
    name = "body" if model is None else message_type(model).rpartition(".")[2]
    first = name if name.isidentifier() else "body"
    context = "AsyncContext" if is_async else "Context"
    return f"{'async ' * is_async}def {_name(call)}({first}: {body}, ctx: {context})"


def _name(call: Callable[..., Any]) -> str:
    plain = _unwrapped(call)
    return getattr(plain, "__name__", None) or type(plain).__name__


def _unwrapped(call: Callable[..., Any]) -> Any:
    """Return the function below partials."""
    while isinstance(call, partial):
        call = call.func
    return call


def _parameters(
    call: Callable[..., Any], refuse: Refuse
) -> tuple[list[Parameter], tuple[Need, ...]]:
    """Return the parameters that are filled by position, and those that depend on functions."""
    plain = _unwrapped(call)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        refuse("it yields, so that calling it would do nothing")
    found, needs = list[Parameter](), list[Need]()
    for each in inspect.signature(call).parameters.values():
        annotation = _annotation(each, call)
        if isinstance(annotation, _Unresolved) and "Depends(" in annotation.text:
            refuse(f"annotation {annotation.text!r} cannot be resolved where it is registered")
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
        refuse(f"parameter {named[0]} has no default, and it is given none")
    placed = [each for each in found if each.kind in BY_POSITION]
    placed = placed or [each for each in found if each.kind is Parameter.VAR_POSITIONAL]
    return placed, tuple(needs)


def _required(parameters: list[Parameter]) -> list[Parameter]:
    """Return the parameters that a call must fill, at least the first."""
    return parameters[:1] + [each for each in parameters[1:] if each.default is Parameter.empty]


class _Unresolved(NamedTuple):
    """An annotation whose name has no value when the handler is registered."""

    text: str


def _annotation(
    parameter: Parameter, call: Callable[..., Any], known: tuple[type, ...] = OURS
) -> Any:
    """Return the value of an annotation; of *known* classes their name is enough."""
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
        return by_name.get(text, _Unresolved(str(parameter.annotation)))


def _classes(annotation: Any) -> tuple[type, ...] | None:
    """Return the classes that an annotation allows; None where that cannot be said."""
    if get_origin(annotation) is Annotated:
        return _classes(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [_classes(each) for each in get_args(annotation)]
        return None if None in parts else tuple(one for part in parts if part for one in part)
    plain = get_origin(annotation) or annotation
    certain = isinstance(plain, type) and plain not in (object, Any)
    return (plain,) if certain and not getattr(plain, "_is_protocol", False) else None


def _is_context(parameter: Parameter, call: Callable[..., Any]) -> bool:
    """Return whether the second parameter is the context; one with a default may be its own."""
    if parameter.default is Parameter.empty or parameter.name in CONTEXT_NAMES:
        return True
    annotation = _annotation(parameter, call)
    if annotation is None:
        return parameter.default is None
    return bool({Context, AsyncContext} & set(_classes(annotation) or ()))


def _check_given(
    parameter: Parameter,
    call: Callable[..., Any],
    given: type,
    refuse: Refuse,
    known: tuple[type, ...] = OURS,
) -> None:
    """Refuse a parameter whose annotation does not allow what it is given."""
    classes = _classes(_annotation(parameter, call, known))
    if classes is not None and not any(issubclass(given, each) for each in classes):
        told = " | ".join(each.__name__ for each in classes)
        refuse(f"parameter {parameter.name} is annotated {told}, but is given {given.__name__}")


def _body(
    parameter: Parameter, call: Callable[..., Any], model: type | None, refuse: Refuse
) -> Any:
    """Return the type that the body is read as: the annotation's, or the registered one."""
    annotation = _annotation(parameter, call)
    if annotation is None:
        if parameter.name in CONTEXT_NAMES:
            refuse(f"the first parameter is the message, and is called {parameter.name}")
        return model
    if isinstance(annotation, _Unresolved):
        if model is None:
            refuse(f"annotation {annotation.text!r} cannot be resolved where it is registered")
        return model
    classes = _classes(annotation)
    if any(issubclass(each, OURS) for each in classes or ()):
        refuse("the first parameter is given the message's body")
    if model is not None and classes is not None:
        if model not in classes and any(issubclass(model, each) for each in classes):
            return model  # its base class would lose its fields
        if not any(each is model or message_type(each) == message_type(model) for each in classes):
            refuse(f"it is registered for {model.__name__}, but takes another type")
    _check_readable(annotation, refuse)
    return annotation


def _check_readable(annotation: Any, refuse: Refuse) -> None:
    """Refuse a type that no body can be validated as."""
    try:
        adapter(annotation)
    except PydanticSchemaGenerationError:
        refuse(f"no body can be read as {getattr(annotation, '__name__', annotation)}")
    except Exception:  # noqa: BLE001 - a model that is completed later, or an unhashable type
        return
