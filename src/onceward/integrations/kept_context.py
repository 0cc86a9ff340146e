"""
Store the context of an agent's run with its steps, and give it back when they are found again.

The function of a stored step is not called again, so what it changed in an object that tools and
hooks share comes back with its result. Each step stores the fields that differ from those of the
last stored step, whether the step itself, a hook or the handler has changed them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from onceward import AsyncContext, AsyncRun, Reject
from onceward.integrations.context_fields import (
    WHOLE,
    adapters_of,
    delete_field,
    fields_of,
    refill,
    same,
    set_field,
)

CHANGED: Final = "onceward_context"
"""Key of the changes, in a stored result that has some."""
ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)
LOST: Final = (
    "the run changed {field} of its context, a {owner}, to {value}, which cannot be given back"
    " when the handler is called again ({why}): annotate it with a type that pydantic writes as"
    " JSON and reads as the same value, or begin its name with an underscore if each call may"
    " begin without it"
)


class Seen(NamedTuple):
    """A field as it was when it was last compared."""

    value: Any
    text: bytes | None
    """Its JSON; None if it has none, as a client or a connection."""


NOT_SEEN: Final = Seen(object(), None)


class KeptContext:
    """The object that tools and hooks of runs share, in one call of a handler."""

    def __init__(self, of: object) -> None:
        self._of = of
        self._adapters = adapters_of(of)
        self._number = 0
        self._given_back: dict[str, int] = {}
        """By field, the number of the step that it was given back from."""
        self._known = self._seen()

    def changed(self) -> list[str]:
        """Return the fields that have changed since, without those that are not JSON."""
        now = self._seen()
        return [
            name
            for name in {**self._known, **now}
            if now.get(name, NOT_SEEN).text != self._known.get(name, NOT_SEEN).text
            and not str(name).startswith("_")
        ]

    def changes(self) -> dict[str, Any] | None:
        """
        Return what has changed since the last stored step, as JSON; None for nothing.

        Raises:
            Reject: a field was changed to a value that cannot be given back.

        """
        before, self._known = self._known, self._seen()
        fields, in_place = dict[str, Any](), list[str]()
        for name, seen in self._known.items():
            was = before.get(name, NOT_SEEN)
            if _differs(was, seen) and self._is_kept(name, seen):
                fields[name] = from_json(seen.text or b"null")
                in_place += [name] if was.value is seen.value else []
        gone = [name for name in before if name not in self._known]
        if not fields and not gone:
            return None
        self._number += 1
        return {"number": self._number, "fields": fields, "in_place": in_place, "gone": gone}

    def give_back(self, stored: dict[str, Any]) -> None:
        """
        Change the context as it was changed before a step was stored.

        Steps that ran at once may be found in another order than that of their ends: the newest
        value of a field stands. An object that was changed in place stays the same object.
        """
        number, now = stored["number"], fields_of(self._of)
        self._number = max(self._number, number)
        for name, value in stored["fields"].items():
            if self._is_newest(name, number):
                then = self._adapter(name).validate_json(to_json(value))
                if name not in stored["in_place"] or not refill(now.get(name), then):
                    set_field(self._of, name, then)
        for name in stored["gone"]:
            if self._is_newest(name, number):
                delete_field(self._of, name)
        self._known = self._seen()

    def _is_newest(self, name: str, number: int) -> bool:
        if number < self._given_back.get(name, 0):
            return False
        self._given_back[name] = number
        return True

    def _adapter(self, name: str) -> TypeAdapter[Any]:
        return self._adapters.get(name, ANY) or ANY

    def _seen(self) -> dict[str, Seen]:
        return {name: Seen(value, self._text(name, value)) for name, value in self._now().items()}

    def _now(self) -> dict[str, Any]:
        return fields_of(self._of)

    def _text(self, name: str, value: object) -> bytes | None:
        try:  # by its own type: of a subclass nothing may be missing
            return self._adapter(name).dump_json(value, serialize_as_any=True, warnings=False)
        except Exception:  # noqa: BLE001 - what a field of the user's raises
            return None

    def _is_kept(self, name: object, seen: Seen) -> bool:
        """Return whether a changed field can be given back; False for a private one that cannot."""
        try:
            if not isinstance(name, str):
                why = "its key is not text"
            elif seen.text is None:
                why = "it is not JSON"
            elif same(seen.value, self._adapter(name).validate_json(seen.text)):
                return True
            else:
                why = "it comes back as another value"
        except ValueError as error:
            why = f"it is not read back: {type(error).__name__}"
        if str(name).startswith("_"):
            return False
        owner, value = type(self._of).__name__, f"a {type(seen.value).__name__}"
        field = f"field {name!r}" if name != WHOLE else "what is"
        raise Reject(LOST.format(field=field, owner=owner, value=value, why=why))


def _differs(was: Seen, now: Seen) -> bool:
    if was.value is now.value:
        return was.text != now.text
    return was.text != now.text or now.text is None or not same(was.value, now.value)


async def kept_step(
    context: AsyncContext | AsyncRun,
    kept: KeptContext,
    function: Callable[[], Awaitable[Any]],
    *told: int,
    **options: Any,
) -> tuple[Any, bool]:
    """
    Return the result of a step, and whether its function was called.

    Where it was not, the context is as it was when the step was stored.
    """
    called = False

    async def effect(*_told: int) -> Any:
        nonlocal called
        called = True
        result = await function()
        changes = kept.changes()
        return result if changes is None else {CHANGED: changes, "result": result}

    step: Callable[..., Awaitable[Any]] = context.step
    found = await step(effect, *told, **options)
    if not isinstance(found, dict) or CHANGED not in found:
        return found, called
    if not called:
        kept.give_back(found[CHANGED])
    return found["result"], called


_kept: WeakKeyDictionary[Any, dict[int, KeptContext]] = WeakKeyDictionary()
"""By the context of a handler's call, the objects that its runs share, by id."""


def kept_context(handler: AsyncContext | AsyncRun, of: object) -> KeptContext:
    """Return the object that a run shares; two runs of a call may share the same."""
    known = _kept.setdefault(handler, {})
    if id(of) not in known:
        known[id(of)] = KeptContext(of)
    return known[id(of)]
