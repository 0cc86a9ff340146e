"""Failed calls of handlers are kept with their tracebacks, a few of each message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onceward import Agent, Drop, Postbox, Reject, Run
from onceward.core.rows.inbox import ATTEMPTS_OF_MESSAGE
from onceward.testing import Controls, ManualClock

ATTEMPTS = "SELECT attempt, error, trace, took FROM onceward_failed_attempts ORDER BY seq"
WORKERS = "SELECT DISTINCT worker FROM onceward_failed_attempts"


def _failing(error: BaseException) -> Agent:
    agent = Agent("crm")

    @agent.on("order")
    def enter(body: dict[str, Any]) -> None:
        raise error

    return agent


def _tried(folder: Path, agent: Agent, times: int) -> list[tuple[Any, ...]]:
    """Send a message to an agent itself, have it tried so many times; return what is kept."""
    clock = ManualClock()
    with Postbox(folder / "crm.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        box.send("crm", {}, type="order")
        for _ in range(times):
            box.run_until_idle()
            clock.advance(3600)
        return list(box.query(ATTEMPTS))


def test_a_failed_call_leaves_its_traceback(tmp_path: Path) -> None:
    """It has the line that raised, the error as the message has it, and the seconds it took."""
    [(attempt, error, trace, took)] = _tried(tmp_path, _failing(KeyError("cents")), 1)

    assert (1, "KeyError: 'cents'") == (attempt, error)
    assert "raise error" in trace
    assert trace.endswith("KeyError: 'cents'\n")
    assert took >= 0


def test_a_message_has_its_failures(tmp_path: Path) -> None:
    """By its id, a program finds what the command shows: errors, tracebacks, death and replays."""
    clock = ManualClock()
    controls, agent = Controls(clock=clock), _failing(KeyError("cents"))
    path = tmp_path / "crm.db"
    with Postbox(path, agent=agent, start=False, testing=controls, handler_attempts=2) as box:
        sent = box.send("crm", {}, type="order")
        box.run_until_idle()
        tried = box.journey(sent)
        clock.advance(3600)
        box.run_until_idle()
        dead = box.journey(sent)
        [letter] = box.dead_letters.list()
        box.dead_letters.replay(sent)
        replayed = box.journey(sent)

    assert tried is not None
    assert dead is not None
    assert replayed is not None
    assert ("KeyError: 'cents'", None, 0) == (tried.last_error, tried.dead_at, tried.replays)
    assert [1] == [each.attempt for each in tried.failed_attempts]
    assert "raise error" in tried.failed_attempts[0].trace
    assert (letter, letter.dead_at, letter.last_error, 2) == (
        dead.record,
        dead.dead_at,
        dead.last_error,
        len(dead.failed_attempts),
    )
    assert (1, None, "KeyError: 'cents'") == (
        replayed.replays,
        replayed.dead_at,
        replayed.last_error,
    )


def test_the_worker_of_a_failed_call_is_named(tmp_path: Path) -> None:
    """By the name of the lease, which other pages show, too."""
    with Postbox(tmp_path / "crm.db", agent=_failing(KeyError("cents")), start=False) as box:
        box.send("crm", {}, type="order")
        box.run_until_idle()
        [(worker,)] = box.query(WORKERS)

    assert "/" in worker


def test_the_last_attempts_of_a_message_are_kept(tmp_path: Path) -> None:
    """Those before are forgotten in the commit of a further one."""
    found = _tried(tmp_path, _failing(OSError("disk")), ATTEMPTS_OF_MESSAGE + 2)

    assert list(range(3, ATTEMPTS_OF_MESSAGE + 3)) == [attempt for attempt, *_ in found]


def test_a_rejected_message_keeps_its_attempt(tmp_path: Path) -> None:
    """Its row of the inbox is gone when the reader asks."""
    [(_, error, trace, _)] = _tried(tmp_path, _failing(Reject("negative amount")), 1)

    assert "negative amount" == error
    assert "Reject: negative amount" in trace


def test_a_message_that_its_handler_drops_has_not_failed(tmp_path: Path) -> None:
    """Nothing is kept of a call that ended as the handler wished."""
    assert [] == _tried(tmp_path, _failing(Drop()), 1)


def test_a_failed_run_keeps_the_attempt_of_its_message(tmp_path: Path) -> None:
    """The trace begins in the user's code, not in the worker that called it."""
    agent = Agent("crm")

    @agent.runs(mode="followup", cap=100)
    def turn(run: Run) -> None:
        msg = "no model answers"
        raise RuntimeError(msg)

    with Postbox(tmp_path / "crm.db", agent=agent, start=False) as box:
        box.session("chat").send("crm", "one")
        box.run_until_idle()
        [(attempt, error, trace, _)] = box.query(ATTEMPTS)

    assert (1, "RuntimeError: no model answers") == (attempt, error)
    assert trace.splitlines()[1].endswith("in turn")


def test_attempts_are_pruned_by_age(tmp_path: Path) -> None:
    """Maintenance forgets them with the rows of their time."""
    clock = ManualClock()
    agent = _failing(Reject("no"))
    with Postbox(
        tmp_path / "crm.db", agent=agent, start=False, testing=Controls(clock=clock)
    ) as box:
        box.send("crm", {}, type="order")
        box.run_until_idle()
        clock.advance(400 * 86_400)
        box.file.run_maintenance()

        assert [] == list(box.query(ATTEMPTS))
