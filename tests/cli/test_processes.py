"""As separate processes: a signal ends work and relay gracefully, with the shell's exit codes."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.children import ONCEWARD, Child

from onceward import Postbox

APP = """
from onceward import Agent

billing = Agent("billing")

@billing.on("hello")
def hello(body: dict) -> dict:
    return {"seen": body["n"]}
"""


@contextmanager
def start(*tokens: str, cwd: Path) -> Iterator[Child]:
    """Start a command and yield it once it runs."""
    with Child([*ONCEWARD, *tokens], "stdout", "stderr", cwd=cwd) as child:
        child.said("interrupt to stop")
        yield child


def test_work_handles_mail_until_it_is_terminated(home: Path, shop: Postbox) -> None:
    """A question is answered by the other process; then SIGTERM ends it with 143."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with (
        start("work", "billing.db", "app:billing", "--json", cwd=home) as child,
        Postbox(shop.path, agent="shop") as asking,
    ):
        assert {"seen": 7} == asking.ask("billing", {"n": 7}, type="hello", reply=dict, timeout=60)
        out, _ = child.stop()

    assert 143 == child.returncode
    assert {
        "agent": "billing",
        "path": str(home / "billing.db"),
        "moved": None,
        "signal": "SIGTERM",
    } == json.loads(out)


def test_relay_delivers_until_it_is_interrupted(
    home: Path, shop: Postbox, billing: Postbox
) -> None:
    """A message that another process commits leaves; then SIGINT ends the relay with 130."""
    with start("relay", "shop.db", cwd=home) as child:
        sent = shop.send("billing", 1)
        message = billing.receive(timeout=60)
        assert message is not None
        assert sent == message.id
        out, err = child.stop(signal.SIGINT)

    assert (130, "") == (child.returncode, out)
    assert "SIGINT, stopping" in err


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_team_stops_together(home: Path, number: signal.Signals) -> None:
    """The signal is passed on, and every worker is waited for."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with start("work", "billing.db", "app:billing", "--processes", "2", cwd=home) as child:
        child.stop(number)

    assert 128 + number == child.returncode
