"""A message whose exception cannot be read is tried as often as another one, and ends alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from onceward import Agent, Context, Postbox, Run, step

GOOD = 5
TRIES = 3


class Exits(Exception):
    """Ends the program that asks for its text."""

    def __str__(self) -> str:
        """Raise SystemExit."""
        raise SystemExit(3)

    __repr__ = __str__


class Interrupts(Exception):
    """Raises KeyboardInterrupt in place of its text."""

    def __str__(self) -> str:
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt

    __repr__ = __str__


class NoText(Exception):
    """Returns a number as its text."""

    def __str__(self) -> Any:
        """Return no text."""
        return 5  # noqa: PLE0307 - what a careless class does


class ExitsWithoutText(BaseException):
    """Is no Exception, and has no text."""

    __repr__ = __str__ = Exits.__str__


class Lies(Exception):
    """Names another class as its own."""

    @property
    def __class__(self) -> Any:
        """Return the class of an exit."""
        return SystemExit

    @__class__.setter
    def __class__(self, _: Any) -> None:
        """Refuse."""


class Hides(Exception):
    """Raises when its class, its causes, its notes or its traceback are read."""

    @property
    def __class__(self) -> Any:
        """Exit."""
        raise SystemExit(4)

    @__class__.setter
    def __class__(self, _: Any) -> None:
        """Refuse."""

    __cause__ = __context__ = __traceback__ = property(Exits.__str__, lambda _, __: None)


def _chained(length: int) -> Exception:
    found = ValueError("the last of many")
    for number in range(length):
        found, before = ValueError("the last of many"), found
        found.__cause__ = before
        before.args = (str(number),)
    return found


def _nested(depth: int) -> Exception:
    found: Exception = ValueError("deep")
    for _ in range(depth):
        found = ExceptionGroup("of groups", [found])
    return found


def _circle() -> Exception:
    one, other = ValueError("round"), KeyError("and round")
    one.__cause__, other.__cause__ = other, one
    return one


def _noted() -> Exception:
    found = ValueError("noted")
    found.__notes__ = [Exits(), 5, "x" * 1_000_000]  # type: ignore[list-item]
    return found


MAKERS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exits": (Exits, "Exits: (no text: str() of it raised SystemExit)"),
    "interrupts": (Interrupts, "Interrupts: (no text: str() of it raised KeyboardInterrupt)"),
    "no text": (NoText, "NoText: (no text: str() of it raised TypeError)"),
    "base": (ExitsWithoutText, "RuntimeError: the handler raised <ExitsWithoutText>"),
    "lies": (lambda: Lies("a lie"), " raised Lies: a lie"),
    "hides": (lambda: Hides("hidden"), " raised Hides: hidden"),
    "half": (lambda: ValueError("caf\ud83d"), "ValueError: caf\\ud83d"),
    "nul": (lambda: ValueError("a\0b"), "ValueError: a\\x00b"),
    "long": (lambda: ValueError("x" * 100_000_000), "ValueError: xxx"),
    "chain": (lambda: _chained(10_000), "ValueError: the last of many"),
    "groups": (lambda: _nested(900), ""),
    "circle": (_circle, "ValueError: round"),
    "notes": (_noted, "ValueError: noted"),
}


def _function(agent: Agent, fail: Callable[[], None]) -> None:
    @agent.on("bad")
    def bad(body: dict[str, Any]) -> None:
        fail()


def _coroutine(agent: Agent, fail: Callable[[], None]) -> None:
    @agent.on("bad")
    async def bad(body: dict[str, Any]) -> None:
        fail()


def _batch(agent: Agent, fail: Callable[[], None]) -> None:
    @agent.on("bad", batch=2, within=0)
    def bad(bodies: list[dict[str, Any]]) -> None:
        fail()


def _run(agent: Agent, fail: Callable[[], None]) -> None:
    @agent.runs("bad-*")
    def bad(run: Run) -> None:
        fail()


def _step(agent: Agent, fail: Callable[[], None]) -> None:
    @step
    def work() -> None:
        fail()

    @agent.on("bad")
    def bad(body: dict[str, Any], ctx: Context) -> None:
        ctx.step(work)


FORMS = {
    "function": _function,
    "coroutine": _coroutine,
    "batch": _batch,
    "run": _run,
    "step": _step,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_message_whose_error_is_unreadable_ends_alone(
    tmp_path: Path, maker: str, form: str
) -> None:
    """Its attempts are exact, its error is stored, and each neighbour is handled once."""
    make, told = MAKERS[maker]
    agent, calls, handled = Agent("crm"), Counter[str](), Counter[int]()

    def fail() -> None:
        calls["bad"] += 1
        raise make()

    @agent.on("good")
    def good(body: dict[str, Any]) -> None:
        handled[body["n"]] += 1

    FORMS[form](agent, fail)
    settings: dict[str, Any] = {
        "handler_attempts": TRIES,
        "delivery_retry": "0.01s ±0%",
        "handler_retry": "0.01s ±0%",
    }
    with Postbox(tmp_path / "crm.db", agent=agent, **settings) as box:
        with box.begin() as tx:
            for n in range(GOOD):
                tx.send("crm", {"n": n}, type="good", ordering_key=f"good {n}")
            box.session("bad-1").send("crm", {}, type="bad")
            for n in range(GOOD, 2 * GOOD):
                tx.send("crm", {"n": n}, type="good", ordering_key=f"good {n}")
        [dead] = until(lambda: [*box.dead_letters.list()])
        until(lambda: len(handled) == 2 * GOOD)

    assert TRIES == calls["bad"]
    assert dict.fromkeys(range(2 * GOOD), 1) == handled
    assert "attempts_spent" == dead.reason
    assert told in (dead.last_error or "")


@pytest.mark.parametrize("maker", ["exits", "no text", "lies", "hides", "half", "long"])
def test_a_block_that_ends_by_an_unreadable_error_puts_its_message_back(
    tmp_path: Path, maker: str
) -> None:
    """The error goes on to the reader, and the message has its text."""
    make, told = MAKERS[maker]
    with Postbox(tmp_path / "crm.db", agent="crm", start=False, handler_attempts=1) as box:
        box.send("crm", {}, type="order")
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        raised: list[type] = []
        try:
            with message:
                raise make()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            raised.append(type(error))
        [dead] = box.dead_letters.list()

    assert [type(make())] == raised
    assert told.removeprefix(" raised ") in (dead.last_error or "")
