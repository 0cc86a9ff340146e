"""``tail --follow`` and ``--watch``: what happens, as it happens, until an interrupt."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from tests.cli.terminals import terminal

from onceward import Postbox

Cli = Callable[..., Any]
Steps = Callable[..., None]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Return a call that does one step in each wait of a command, and interrupts the next one."""
    wait, caller = time.sleep, get_ident()

    def call(*steps: Callable[[], object]) -> None:
        left = list(steps)

        def sleep(seconds: float) -> None:
            if get_ident() != caller:  # such as the heartbeat of the engines
                wait(seconds)
                return
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(time, "sleep", sleep)

    return call


def arrive(billing: Postbox, count: int, session: str = "default") -> Callable[[], None]:
    """Return a call that lets so many messages come to shop at once."""

    def call() -> None:
        start = billing.file.stats()["enqueued"]
        for n in range(start, start + count):
            billing.session(session).send("shop", n)
        billing.run_until_idle()

    return call


def bodies(out: str) -> list[Any]:
    """Return the bodies of printed messages."""
    return [json.loads(line)["body"] for line in out.splitlines()]


def test_tail_follows_what_comes(cli: Cli, shop: Postbox, billing: Postbox, between: Steps) -> None:
    """The newest first, then each message once, in order, however many come at once."""
    arrive(billing, 3)()
    between(arrive(billing, 1), arrive(billing, 2, "other"), arrive(billing, 25))
    ran = cli("tail", "-n", "2", "--follow")

    assert [1, 2, 3, *range(6, 31)] == bodies(ran.out)
    assert 130 == ran.code
    assert 31 == shop.file.stats()["inbox_pending"]


@pytest.mark.parametrize("words", [[], ["--transitions"]])
def test_tail_ends_with_its_file(
    cli: Cli, home: Path, between: Steps, tmp_path: Path, words: list[str]
) -> None:
    """A file in its place has other commits: silence would look like quiet."""
    with Postbox(home / "shop.db", agent="shop", start=False, transitions=True):
        pass
    shutil.copy(home / "shop.db", tmp_path / "copy.db")
    between(lambda: (tmp_path / "copy.db").replace(home / "shop.db"))
    ran = cli("tail", "--follow", *words)

    assert (7, True) == (ran.code, "was replaced or deleted" in ran.err)


@pytest.mark.usefixtures("shop")
def test_tail_follows_an_empty_session(cli: Cli, billing: Postbox, between: Steps) -> None:
    """The first messages are all printed, also where more than -n come at once."""
    between(arrive(billing, 5))

    assert [0, 1, 2, 3, 4] == bodies(cli("tail", "-n", "2", "-f").out)


def test_transitions_are_printed_as_they_are_made(
    cli: Cli, home: Any, billing: Postbox, between: Steps
) -> None:
    """The last ones, then those of each commit, of all sessions."""
    with Postbox(home / "shop.db", agent="shop", start=False, transitions=True) as shop:
        arrive(billing, 1, "x")()

        def handle() -> None:
            message = shop.receive()
            assert message is not None
            message.ack()

        between(handle)
        ran = cli("tail", "--follow", "--transitions")
        last = cli("tail", "--transitions", "-n", "1")
    lines = [json.loads(line) for line in ran.out.splitlines()]

    assert [(None, "pending"), ("pending", "processed")] == [
        (line["from_state"], line["to_state"])
        for line in lines
        if line["from_state"] != line["to_state"]
    ]
    assert {"seq", "at", "agent", "box", "id", "peer", "from_state", "to_state", "reason"} == set(
        lines[0]
    )
    assert (0, [lines[-1]]) == (last.code, [json.loads(line) for line in last.out.splitlines()])


@pytest.mark.usefixtures("shop")
def test_a_file_without_transitions_says_so(cli: Cli) -> None:
    """Waiting for what never comes would look like silence."""
    found = cli("tail", "--transitions", "-f")

    assert (2, True) == (found.code, "ONCEWARD_TRANSITIONS=1" in found.err)


@pytest.mark.parametrize(
    "words", [["stats"], ["ls"], ["ls", "outbox"], ["peers", "ls"]], ids=" ".join
)
def test_watch_looks_again(cli: Cli, shop: Postbox, between: Steps, words: list[str]) -> None:
    """Each look is that of the command at that time; in a pipe an empty line parts them."""
    name = words[:2] if words[0] == "peers" else words[:1]
    before = cli(*words).out
    between(lambda: shop.send("shop", 1), lambda: None)
    ran = cli(*name, "--watch", "1s", *words[len(name) :])
    after = cli(*words).out

    assert 130 == ran.code
    assert f"{before}\n{after}\n{after}" == ran.out


def test_watch_ends_with_an_error(cli: Cli, shop: Postbox, between: Steps) -> None:
    """A file that is gone is told, not waited for; no span is none."""
    shop.close()
    between(shop.file.path.unlink, lambda: None)

    assert [3, 2] == [cli("stats", "--watch", "1").code, cli("stats", "--watch", "0").code]


def test_watch_replaces_the_last_look_on_a_terminal(shop: Postbox) -> None:
    """The screen is cleared before each."""
    with terminal(shop.file.path.parent, "stats", "shop.db", "--all", "--watch", "0.1") as screen:
        screen.until(lambda text: "enqueued" in text)
        shop.send("shop", 1)
        screen.until(
            lambda text: any(line.split() == ["enqueued", "1"] for line in text.splitlines())
        )
        screen.process.send_signal(signal.SIGINT)
        assert 130 == screen.end()


def test_watch_clears_no_dumb_terminal(shop: Postbox) -> None:
    """Its looks are parted as in a pipe."""
    with terminal(
        shop.file.path.parent, "stats", "shop.db", "--all", "--watch", "0.1", term="dumb"
    ) as screen:
        screen.until(lambda text: text.count("enqueued") > 1)
        screen.process.send_signal(signal.SIGINT)
        assert 130 == screen.end()

    assert "\x1b" not in screen.seen
