"""Check the signature of a batch handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, get_args, get_origin

from onceward.core.handle.signatures import (
    OURS,
    WITH_CONTEXT,
    HandlerSignature,
    Need,
    Refuse,
    Unresolved,
    annotation_of,
    check,
    check_given,
    check_readable,
    is_context,
    is_coroutine,
    name_of,
    parameters_of,
    refuse_handler,
    required,
)
from onceward.features.batches.context import AsyncBatchContext, BatchContext
from onceward.message.body import message_type

KNOWN: Final = (*OURS, BatchContext, AsyncBatchContext)
LISTS: Final = (list, Sequence)
"""Classes allowed as the annotation of the first parameter."""


def batch_signature(call: Callable[..., Any], model: type | None) -> HandlerSignature:
    """
    Return the signature of a batch handler; *model* is the class that it is registered for.

    Raises:
        InvalidArgument: it cannot be called with a list of bodies and a context.

    """
    is_async = is_coroutine(call)
    given = AsyncBatchContext if is_async else BatchContext
    body = "dict" if model is None else model.__name__
    shown = f"def {name_of(call)}(bodies: list[{body}], ctx: {given.__name__})"
    refuse = partial(refuse_handler, call, f"{'async ' * is_async}{shown}")
    parameters, needs = parameters_of(call, refuse)
    if not 1 <= len(required(parameters)) <= WITH_CONTEXT:
        refuse("it must take the messages and, if it wants, a context")
    check(needs, is_async=is_async)
    read_as = _element(annotation_of(parameters[0], call), model, refuse)
    others = parameters[1:]
    takes_context = bool(others) and is_context(others[0], call)
    if takes_context:
        check_given(others[0], call, given, refuse, KNOWN)
    if needs and takes_context:  # a parameter between them may be a dependency
        return HandlerSignature(read_as, False, is_async, (*needs, Need(others[0].name, None)))  # noqa: FBT003
    return HandlerSignature(read_as, takes_context, is_async, needs)


def _element(annotation: Any, model: type | None, refuse: Refuse) -> Any:
    """Return the type as which each body is read: the list's, or the registered one."""
    if annotation is None or isinstance(annotation, Unresolved) or annotation is list:
        return model
    if get_origin(annotation) not in LISTS:
        refuse("the first parameter gets a list of bodies")
    [found] = get_args(annotation)
    if model is not None and found is not model and not _reads(found, model):
        refuse(f"it is registered for {model.__name__}, but takes a list of another type")
    check_readable(found, refuse)
    return model if isinstance(found, type) and model and issubclass(model, found) else found


def _reads(found: Any, model: type) -> bool:
    """Return whether bodies of *model* may be read as another class: a base or compatible."""
    if not isinstance(found, type):
        return found is Any
    return issubclass(model, found) or message_type(found) == message_type(model)
