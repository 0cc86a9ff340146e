"""Compare a message with what its recipient's entry in the registry says that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, Final

from anyio import to_thread
from jsonschema import Draft202012Validator
from jsonschema.validators import create
from referencing import Registry

from onceward import AsyncPostbox
from onceward.message.body import encode
from onceward.message.names import AcceptedType, AgentInfo, quoted
from onceward.message.topics import matches
from onceward.ops.mcp.advice import refused

PAGE: Final = 50
"""Entries of the registry in one look, and most types in one error."""
FAULTS: Final = 3
"""Most faults of a body in one error."""
FAULT_MAX: Final = 200
"""Most characters of one fault, which quotes the body."""
STEPS: Final = 50_000
"""Keywords that are applied to one body; after that, only the recipient decides."""
CURE: Final = "Nothing was sent. Call list_agents with search={} for its types and schemas."
# Another agent wrote the schema: keywords with regular expressions may run for hours.
UNSAFE: Final = frozenset({
    "pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems",
    "format", "$dynamicRef",
})  # fmt: skip
_left: ContextVar[list[int]] = ContextVar("_left")
"""The number of steps that are left, in a list of one."""


class _TooLong(Exception):
    """A schema takes too many steps."""


def _counted(keyword: str, check: Callable[..., Any]) -> Callable[..., Any]:
    """Return the check of a keyword, which ends a schema that takes too many steps."""

    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooLong
        if keyword != "additionalProperties" or "patternProperties" not in schema:
            yield from check(validator, value, instance, schema) or ()

    return run


SAFE: Final = create(
    meta_schema={},
    validators={
        keyword: _counted(keyword, check)
        for keyword, check in Draft202012Validator.VALIDATORS.items()
        if keyword not in UNSAFE
    },
    type_checker=Draft202012Validator.TYPE_CHECKER,
)


async def refuse_unfit(box: AsyncPostbox, to: str, type: str | None, body: Any) -> None:
    """
    Raise ToolError for a message that the recipient would reject, as far as its entry says.

    An agent that is not registered, or has no handlers, may accept anything.
    """
    entry = await _entry(box, to)
    if entry is None or not entry.accepts:
        return
    kind, cure = type or encode(body).type, CURE.format(quoted(to))
    fitting = [each for each in entry.accepts if matches(each.type, kind)]
    if not fitting:
        known = ", ".join(quoted(each.type) for each in entry.accepts[:PAGE])
        raise refused(f"{to} accepts no message of type {quoted(kind)}, only {known}", cure)
    exact = [each for each in fitting if each.type == kind] or fitting
    found = [await to_thread.run_sync(partial(_faults, each, body)) for each in exact]
    if all(found):
        raise refused(f"the body does not fit {quoted(kind)} of {to}: {'; '.join(found[0])}", cure)


async def _entry(box: AsyncPostbox, name: str) -> AgentInfo | None:
    """Return an agent's entry in the registry."""
    after = ""
    while found := await box.agents.list(search=name, limit=PAGE, after=after):
        for each in found:
            if each.name == name:
                return each
        after = found[-1].name
    return None


def _faults(accepted: AcceptedType, body: Any) -> list[str]:
    """Return what is wrong with a body; nothing if the schema does not tell."""
    if accepted.schema is None:
        return []
    _left.set([STEPS])
    try:
        checked = SAFE(accepted.schema, registry=Registry())  # which loads nothing from elsewhere
        found = list(islice(checked.iter_errors(body), FAULTS))
    except Exception:  # noqa: BLE001 - a schema that cannot be applied: the recipient decides
        return []
    return [f"{each.json_path}: {each.message[:FAULT_MAX]}" for each in found]
