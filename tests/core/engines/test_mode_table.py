"""The table of the modes says what happens in each of them."""

from pathlib import Path
from typing import Any

import pytest

from onceward import Run
from onceward.errors import RequestFailed

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "runs" / "which-mode.md"
HEADS = "| mode | the open call |"
MODES: dict[str, dict[str, Any]] = {
    "`followup`": {"mode": "followup"},
    "`queue`": {"mode": "queue"},
    "`collect`": {"mode": "collect"},
    "`steer`, `inject=True`": {"mode": "steer", "inject": True},
    "`steer`, `inject=True`, `inbox()` not called": {"mode": "steer", "inject": True},
    "`steer`": {"mode": "steer"},
    '`steer`, `aborted="deliver"`, after a checkpoint': {"mode": "steer", "aborted": "deliver"},
    "`interrupt`": {"mode": "interrupt"},
}


def rows() -> dict[str, list[str]]:
    """Return the rows of the page's table by mode."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(HEADS)
    lines = table.partition("\n\n")[0].splitlines()[2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {mode: cells for mode, *cells in found}


def played(one: Any, mode: str) -> list[str]:
    """Return the row of what happens: a run of a is open, and b and c come."""
    tickets: list[Any] = []
    calls: list[str] = []
    states: set[str] = set()

    def ask(*bodies: str) -> None:
        tickets.extend(one.user.session("s").request("coder", body) for body in bodies)
        one.harness.deliver()

    def busy(run: Run) -> str:
        if "checkpoint" in mode:
            run.checkpoint("half")
        ask("b", "c")
        states.update(one.user.state(each.id) for each in tickets)
        calls.append("is cancelled, commits nothing more" if run.cancelled else "continues")
        if "inject" in mode and "not called" not in mode:
            one.seen[0] += [message.body for message in run.inbox()]
        return "1"

    one.script = [busy, *[lambda _: str(len(one.seen))] * 3]
    ask("a")
    assert states == ({"sent", "acked"} if "deliver" in mode else {"sent"})
    assert {"acked"} == {one.user.state(each.id) for each in tickets}
    answers = ", ".join(_answer(one.user, ticket) for ticket in tickets)
    return [*calls, _first(one.seen), _others(one.seen), f"of runs {answers}"]


def _answer(user: Any, ticket: Any) -> str:
    try:
        return str(user.result(ticket, reply=str))
    except RequestFailed:
        return "-"


def _first(seen: list[list[Any]]) -> str:
    taken = [bodies.index("a") for bodies in seen if "a" in bodies]
    return {(0,): "ends with it", (0, 0): "is in the next run, first"}[tuple(taken)]


def _others(seen: list[list[Any]]) -> str:
    return {
        "a|b|c": "wait; a run each",
        "a|bc": "wait; one run",
        "abc": "join it by `run.inbox()`",
        "a|abc": "are in the next run, after it",
    }["|".join("".join(bodies) for bodies in seen)]


def test_the_table_has_every_mode() -> None:
    """Each row is played below."""
    assert list(MODES) == list(rows())


@pytest.mark.parametrize("mode", MODES)
def test_the_table_says_what_happens(scripted_agent: Any, mode: str) -> None:
    """Call, messages and answers are as the row says; senders see sent, then acked."""
    assert rows()[mode] == played(scripted_agent(**MODES[mode]), mode)
