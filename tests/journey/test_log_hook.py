"""``LogHook`` writes one line per event; the levels say which of them are trouble."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from onceward import Agent, Postbox
from onceward.events import Enqueued, Retried
from onceward.hooks import LEVELS, LogHook
from onceward.message.events import EVENTS, DeadLettered, Event, MessageEvent


def test_every_event_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message to oneself that is rejected leaves its whole path in the log, at two levels."""
    caplog.set_level(logging.DEBUG, "onceward")
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        box.on(Event, LogHook())
        sent = box.send("a", {"secret": 1}, type="job")
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.reject("no")

    lines = {line.getMessage().split()[0]: line for line in caplog.records}
    assert {"DEBUG", "ERROR"} <= {line.levelname for line in lines.values()}
    assert (
        f"agent=a at={lines['dead_lettered'].__dict__['onceward']['at']} message_id={sent} peer=a"
        in (lines["dead_lettered"].getMessage())
    )
    assert "secret" not in caplog.text


def test_every_event_of_a_message_names_its_session_and_type(tmp_path: Path) -> None:
    """Sent, stored, retried, handled, dead, refused: all can be found by session and type."""
    agent, told = Agent("b"), list[Event]()

    @agent.on("job", attempts=2)
    def work(body: dict[str, str]) -> None:
        raise ValueError(body["says"])

    agent.on("done")(lambda _: None)
    with (
        Postbox(
            tmp_path / "b.db",
            agent=agent,
            start=False,
            delivery_retry="0s ±0%",
            handler_retry="0s ±0%",
        ) as b,
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
    ):
        for box in (a, b):
            box.on(Event, told.append)
        for kind in ("job", "done"):
            a.session("s").send("b", {"says": "no"}, type=kind)
        for box in (a, b, b, a, b, a):
            box.run_until_idle()

    of_messages = [event for event in told if isinstance(event, MessageEvent)]
    assert {
        "enqueued",
        "sent",
        "received",
        "retried",
        "processed",
        "dead_lettered",
        "acked",
        "failed",
    } == {event.name for event in of_messages}
    assert [] == [e for e in of_messages if (e.session, e.type in {"job", "done"}) != ("s", True)]


def test_the_event_of_a_dead_letter_has_its_error(tmp_path: Path) -> None:
    """A message that no push could deliver names the last error, as its dead letter does."""
    told = list[DeadLettered]()
    with Postbox(
        tmp_path / "a.db",
        agent="a",
        start=False,
        delivery_attempts=1,
        count_unreachable_attempts=True,
    ) as box:
        box.on(DeadLettered, told.append)
        box.peers.add("b", "memory:b")
        box.session("s").send("b", 1, type="job")
        box.run_until_idle()
        [dead] = box.dead_letters.list()

    [event] = told
    assert ("s", "job", dead.last_error) == (event.session, event.type, event.error)
    assert "b" in event.error


def test_a_line_carries_what_a_message_is_found_by(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its fields are agent, session, message id and type, and the attempt where there is one."""
    caplog.set_level(logging.DEBUG, "onceward")
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, delivery_retry="0s ±0%", handler_retry="0s ±0%"
    ) as box:
        box.on(Retried, LogHook())
        sent = box.session("s").send("a", 1, type="job")
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.retry()

    [line] = [record for record in caplog.records if record.getMessage().startswith("retried")]
    fields = line.__dict__["onceward"]
    assert {
        "agent": "a", "session": "s", "message_id": sent, "type": "job", "attempt": 1,
    }.items() <= fields.items()  # fmt: skip


def test_a_handled_message_is_a_line_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without any hook the log names each handled message with session, type and attempt."""
    caplog.set_level(logging.DEBUG, "onceward")
    agent = Agent("a")
    agent.on("job")(lambda _: None)
    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        sent = box.session("s").send("a", 1, type="job")
        box.run_until_idle()

    said = f"handler returned agent=a session=s message_id={sent} type=job attempt=1"
    assert [("DEBUG", said)] == [(line.levelname, line.getMessage()) for line in caplog.records]


def test_a_logger_of_ones_own_is_used(tmp_path: Path) -> None:
    """A structlog logger that is handed in gets the events by level, with their fields."""
    logger = CapturingLogger()
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        box.on(Enqueued, LogHook(logger))
        sent = box.send("a", 1, type="job")

    [call] = logger.calls
    assert ("debug", ("enqueued",)) == (call.method_name, call.args)
    assert {"agent": "a", "message_id": sent, "peer": "a"}.items() <= call.kwargs.items()


def test_levels_name_events_that_exist() -> None:
    """A renamed event does not fall back to DEBUG unnoticed."""
    assert set() == set(LEVELS) - set(EVENTS)
