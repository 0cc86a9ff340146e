"""Make a handler of a function of plain arguments: its body is a model of its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, Final, NamedTuple, NoReturn, Union

from pydantic import Field, ValidationError, create_model

from onceward.api.declared import Way
from onceward.core.handle.context import AsyncContext, Context
from onceward.core.handle.signatures import (
    CONTEXT_NAMES,
    HandlerSignature,
    Need,
    Refuse,
    Unresolved,
    annotation_of,
    check,
    check_given,
    check_readable,
    classes_of,
    dependency_of,
    is_coroutine,
)
from onceward.errors import InvalidArgument, InvalidMessage
from onceward.message.body import Msg, message_type
from onceward.message.names import quoted
from onceward.message.topics import WILD
from onceward.message.validators import describe_errors

POSITIONAL: Final = Parameter.POSITIONAL_ONLY
UNNAMED: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """A function of plain arguments, and how it is called with the body of a message."""

    call: Callable[..., Any]
    model: type[Msg]
    arguments: Signature
    """The parameters that the body fills."""
    fields: tuple[tuple[str, str], ...]
    """Each of their names, and the field that has its value."""
    context: str | None
    """The parameter that gets the context."""
    leading: tuple[str, ...]
    """The parameters that are given by position only."""
    signature: HandlerSignature

    @property
    def type(self) -> str:
        """Wire name of the calls."""
        return message_type(self.model)

    def body(self, args: tuple[Any, ...], named: dict[str, Any]) -> Msg:
        """Return the body of a call; raise InvalidMessage with the name of a wrong argument."""
        try:
            bound = self.arguments.bind(*args, **named)
            return self.model(**bound.arguments)
        except TypeError as error:
            why = f"{error}; its arguments are {self.arguments}"
        except ValidationError as error:
            why = describe_errors(error)
        raise InvalidMessage(f"{self.call.__name__}: {why}")

    def handler(self) -> Callable[..., Any]:
        """Return a function of the body that calls the task."""
        call, fields, context, leading = self.call, self.fields, self.context, self.leading

        @wraps(call)
        def handle(body: Any, /, *contexts: Any, **given: Any) -> Any:
            for name, field in fields:
                given[name] = getattr(body, field)
            if contexts and context is not None:
                given[context] = contexts[0]
            return call(*[given.pop(each) for each in leading], **given)

        return handle


class TaskWay(Way):
    """The way to a task: a call's arguments are those of its function."""

    def __init__(self, task: TaskFunction, agent: str) -> None:
        super().__init__(task.call, agent)
        self.task = task

    def verbs(self) -> dict[str, Any]:
        """Return what the function gets, by name."""
        return {**super().verbs(), "model": self.model}

    @property
    def model(self) -> type[Msg]:
        """The class of the bodies."""
        return self.task.model

    def message(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, Any]:
        """Return the arguments as a body, and the options."""
        return self.task.body(args, named), dict(self._options)


def way_of(call: object) -> TaskWay | None:
    """Return the way to a function that was declared as a task."""
    way = getattr(getattr(call, "send", None), "__self__", None)
    return way if isinstance(way, TaskWay) else None


def takes_nothing(call: Callable[..., Any]) -> bool:
    """Return whether a function has no parameter that a message could fill."""
    return isinstance(call, FunctionType) and not any(
        dependency_of(each, annotation_of(each, call)) is None and not names_context(each, call)
        for each in inspect.signature(call).parameters.values()
    )


def task_of(call: Callable[..., Any], kind: str | None, version: int) -> TaskFunction:
    """
    Return the task that a function is; *kind* is the type of its messages, its name by default.

    Their bodies have a *version*.

    Raises:
        InvalidArgument: a parameter cannot be a field of a message.

    """
    refuse = partial(_refuse, call)
    _check_function(call, kind, refuse)
    found, is_async = _parameters(call), is_coroutine(call)
    check(found.needs, is_async=is_async)
    for each in found.contexts:
        check_given(each, call, AsyncContext if is_async else Context, refuse)
    if len(found.contexts) > 1:
        refuse(f"{found.contexts[1].name} is a second context")
    names = _field_names(found.filled)
    fields: dict[str, Any] = {names[each.name]: _field(each, call, refuse) for each in found.filled}
    model = create_model(
        call.__name__,
        __base__=Msg,
        __module__=call.__module__,
        __cls_kwargs__={"type": call.__name__ if kind is None else kind, "version": version},
        **fields,
    )
    context = found.contexts[0].name if found.contexts else None
    extra = () if context is None or not found.needs else (Need(context, None),)
    return TaskFunction(
        call=call,
        model=model,
        arguments=Signature(found.filled, __validate_parameters__=False),
        fields=tuple(names.items()),
        context=context,
        leading=tuple(each.name for each in found.all if each.kind is POSITIONAL),
        signature=HandlerSignature(
            model, context is not None and not extra, is_async, (*found.needs, *extra)
        ),
    )


class _Parameters(NamedTuple):
    """The parameters of a function by what fills them."""

    all: list[Parameter]
    filled: list[Parameter]
    """Those that are arguments of a call."""
    contexts: list[Parameter]
    needs: tuple[Need, ...]


def _parameters(call: Callable[..., Any]) -> _Parameters:
    given, needs = list(inspect.signature(call).parameters.values()), dict[str, Need]()
    for each in given:
        dependency = dependency_of(each, annotation_of(each, call))
        if dependency is not None:
            needs[each.name] = Need(each.name, dependency.call)
    rest = [each for each in given if each.name not in needs]
    contexts = [each for each in rest if names_context(each, call)]
    filled = [each for each in rest if each not in contexts]
    return _Parameters(given, filled, contexts, tuple(needs.values()))


def names_context(parameter: Parameter, call: Callable[..., Any]) -> bool:
    """Return whether a parameter is the context, and no argument."""
    annotation = annotation_of(parameter, call)
    if annotation is None:
        return parameter.name in CONTEXT_NAMES
    return any(issubclass(each, Context | AsyncContext) for each in classes_of(annotation) or ())


def _check_function(call: Callable[..., Any], kind: object, refuse: Refuse) -> None:
    if not isinstance(call, FunctionType):
        refuse("a task is a function made by def or async def")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        refuse("it has a yield, so calling it would do nothing")
    if isinstance(kind, str) and not WILD.isdisjoint(kind):
        refuse(f"type={quoted(kind)} is a pattern, but a task has messages of one type")


def _field_names(parameters: list[Parameter]) -> dict[str, str]:
    """Return a field for each argument, named like it where a model can have such a field."""
    names = dict[str, str]()
    for name in [each.name for each in parameters]:
        field = name
        while field.startswith("_") or hasattr(Msg, field) or field in names.values():
            field = f"f{field}"
        names[name] = field
    return names


def _field(parameter: Parameter, call: Callable[..., Any], refuse: Refuse) -> tuple[Any, Any]:
    """Return type and default of an argument's field; in JSON it is named like the argument."""
    name, default = parameter.name, parameter.default
    if parameter.kind in UNNAMED:
        refuse(f"parameter {name} takes any number of arguments: name each of them")
    found = annotation_of(parameter, call)
    if isinstance(found, Unresolved):
        refuse(f"annotation {found.text!r} of {name} cannot be resolved at registration")
    annotation = Any if found is None else found
    check_readable(annotation, refuse)
    if default is None:
        annotation = Union[annotation, None]  # noqa: UP007 - also of a text or a special form
    return annotation, Field(... if default is Parameter.empty else default, alias=name)


def _refuse(call: object, why: str) -> NoReturn:
    name = getattr(call, "__name__", None) or type(call).__name__
    raise InvalidArgument(f"task {name}: {why}")
