"""As separate processes: a signal ends work and relay gracefully, with the shell's exit codes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward import Postbox

APP = """
from onceward import Agent

billing = Agent("billing")

@billing.on("hello")
def hello(body: dict) -> dict:
    return {"seen": body["n"]}
"""


def start(*tokens: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a command and return it once it runs."""
    command = [sys.executable, "-m", "onceward.cli", *tokens]
    child = subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "interrupt to stop" in line:
            break
    return child


def test_work_handles_mail_until_it_is_terminated(home: Path, shop: Postbox) -> None:
    """A question is answered by the other process; then SIGTERM ends it with 143."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with (
        start("work", "billing.db", "app:billing", "--json", cwd=home) as child,
        Postbox(shop.path, agent="shop") as asking,
    ):
        assert {"seen": 7} == asking.ask("billing", {"n": 7}, type="hello", reply=dict, timeout=60)
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)

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
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)

    assert (130, "") == (child.returncode, out)
    assert "SIGINT, stopping" in err


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_team_stops_together(home: Path, number: signal.Signals) -> None:
    """The signal is passed on, and every worker is waited for."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with start("work", "billing.db", "app:billing", "--processes", "2", cwd=home) as child:
        child.send_signal(number)
        child.communicate(timeout=60)

    assert 128 + number == child.returncode
