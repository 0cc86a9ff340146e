"""``LogHook`` writes one line per event; the levels say which of them are trouble."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from onceward import Agent, Postbox
from onceward.hooks import LEVELS, LogHook
from onceward.model.events import EVENTS


def test_every_event_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message to oneself that is rejected leaves its whole path in the log, at two levels."""
    caplog.set_level(logging.DEBUG, "onceward")
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        box.on("*", LogHook())
        sent = box.send("a", {"secret": 1}, type="job")
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.reject("no")

    lines = {line.getMessage().split()[0]: line for line in caplog.records}
    assert {"DEBUG", "ERROR"} <= {line.levelname for line in lines.values()}
    assert f"agent=a at={lines['dead'].__dict__['onceward']['at']} message_id={sent} peer=a" in (
        lines["dead"].getMessage()
    )
    assert "secret" not in caplog.text


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
        box.on("enqueued", LogHook(logger))
        sent = box.send("a", 1, type="job")

    [call] = logger.calls
    assert ("debug", ("enqueued",)) == (call.method_name, call.args)
    assert {"agent": "a", "message_id": sent, "peer": "a"}.items() <= call.kwargs.items()


def test_levels_name_events_that_exist() -> None:
    """A renamed event does not fall back to DEBUG unnoticed."""
    assert set() == set(LEVELS) - set(EVENTS)
