"""``onceward metrics`` and ``--metrics``: what a scraper gets of files and of working processes."""

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import ONCEWARD, Child
from tests.transports.nats_server import nats_server

from onceward import Postbox
from onceward.ops.cli.measuring import Measuring

Cli = Callable[..., Any]
APP = """
from onceward import Agent

billing = Agent("billing")

@billing.on("hello")
def hello(body: dict) -> None:
    pass
"""


@pytest.mark.usefixtures("billing")
def test_metrics_prints_those_of_a_home(cli: Cli, shop: Postbox) -> None:
    """Of the home by default, of the files that are named, as text or as JSON."""
    shop.send("billing", 1)
    whole, one = cli("metrics"), cli("metrics", "shop.db")
    rows = cli("metrics", "shop.db", "--json").json

    assert 'onceward_outbox_pending{agent="shop"} 1.0' in whole.out.splitlines()
    assert 'onceward_outbox_pending{agent="billing"} 0.0' in whole.out.splitlines()
    assert "billing" not in {row["labels"]["agent"] for row in rows}
    assert 'agent="billing"' not in one.out
    assert (0, 0) == (whole.code, one.code)
    assert {"name": "onceward_outbox_pending", "labels": {"agent": "shop"}, "value": 1} in rows


@pytest.mark.usefixtures("shop")
def test_a_label_cannot_move_the_cursor(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a file that cannot be read is a label; a scraper gets it as it is."""
    (home / "a\x9b2J\x1b]0;b.db").write_bytes(b"no database" * 1000)

    piped = cli("metrics").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = cli("metrics").out

    assert 'agent="a\x9b2J\x1b]0;b"' in piped
    assert (True, []) == (
        'agent="a\\x9b2J\\x1b]0;b"' in shown,
        [c for c in shown if not c.isprintable() and c != "\n"],
    )


def test_metrics_says_what_it_cannot_read(cli: Cli, home: Path) -> None:
    """A damaged file is a value with its own exit code; a place without agents is an error."""
    (home / "bad.db").write_bytes(b"no database" * 1000)
    (home / "empty").mkdir()

    found = cli("metrics")

    assert 6 == found.code
    assert 'onceward_file_readable{agent="bad"} 0.0' in found.out.splitlines()
    assert [3, 3] == [cli("metrics", place).code for place in ("none", "empty")]


def test_without_the_extra_the_install_line_is_printed(cli: Cli, shop: Postbox) -> None:
    """For the command and for the option, and only where metrics are asked for."""
    code = "from onceward.ops.cli import main; sys.exit(main(sys.argv[1:]))"
    bare = f"import sys; sys.modules['prometheus_client'] = None; {code}"

    def ran(*words: str) -> tuple[int, bool]:
        command = [sys.executable, "-c", bare, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, "pip install 'onceward[metrics]'" in done.stderr

    assert (2, True) == ran("metrics", str(shop.file.path))
    assert (2, True) == ran("relay", str(shop.file.path), "--once", "--metrics", "127.0.0.1:0")
    assert (0, False) == ran("relay", str(shop.file.path), "--once")
    assert 0 == cli("metrics").code


def test_a_worker_serves_what_it_measures(shop: Postbox, home: Path) -> None:
    """Its file, the time that its handlers took, and types that were named."""
    (home / "billing_app.py").write_text(APP, encoding="utf-8")
    words = ("work", "billing.db", "billing_app:billing", "--metrics-type", "hello")
    awaited = [  # one is told by the handler's process, the other is read from the file
        'onceward_accept_to_handled_seconds_count{agent="billing",type="hello"} 1.0',
        'onceward_messages_processed_total{agent="billing"} 1.0',
    ]
    with running(home, *words) as at:
        shop.send("billing", {}, type="hello")
        shop.run_until_idle()
        text = ""
        while not all(each in text for each in awaited):
            text = scraped(at)

    assert 'onceward_handler_duration_seconds_count{agent="billing",outcome="processed"' in text


def test_a_served_home_has_an_address_for_metrics_alone(shop: Postbox, home: Path) -> None:
    """The url of parcels answers no scraper; the metrics are of all agents of the home."""
    Postbox(home / "billing.db", agent="billing", start=False).close()
    shop.close()
    with running(home, "serve", ".", "--listen", "http://127.0.0.1:0") as at:
        text = scraped(at)

    assert 'onceward_paused{agent="billing"} 0.0' in text
    assert 'onceward_paused{agent="shop"} 0.0' in text
    assert 'onceward_commit_duration_seconds_bucket{agent="shop"' in text
    for name in ("connections", "connections_max", "refused_total", "displaced_total"):
        assert f"onceward_listener_{name}{{" in text


def test_agents_of_one_process_share_an_address(home: Path) -> None:
    """The metrics of all of them are at it."""
    declared = 'from onceward import Agent\nboth = [Agent("writer"), Agent("editor")]\n'
    (home / "chat.py").write_text(declared, encoding="utf-8")
    with running(home, "work", "chat:both") as at:
        text = scraped(at)

    for agent in ("writer", "editor"):
        assert f'onceward_paused{{agent="{agent}"}} 0.0' in text
        assert f'onceward_commit_duration_seconds_bucket{{agent="{agent}"' in text


@pytest.mark.parametrize("words", [("serve", "."), ("relay", "shop.db")])
def test_a_process_that_listens_at_a_nats_server_tells_how_full_it_is(
    shop: Postbox, home: Path, words: tuple[str, ...]
) -> None:
    """The used and the most bytes of each stream, as the server says at each scrape."""
    shop.close()
    with nats_server(home) as server, running(home, *words, "--listen", server.url()) as at:
        text = ""
        while "stream=" not in text:
            text = scraped(at)

    for stream in ("OW_PARCELS", "OW_ANSWERS"):
        labels = f'{{stream="{stream}",url="{server.url()}"}}'
        assert f"onceward_nats_stream_bytes{labels} 0.0" in text
        assert f"onceward_nats_stream_max_bytes{labels} 1.073741824e+09" in text


def test_each_process_of_a_team_has_a_port() -> None:
    """They count upwards; a port that the system chooses is that for each of them."""
    asked = Measuring(metrics="127.0.0.1:9464", metrics_type=["paid"])

    assert ["--metrics", "127.0.0.1:9466", "--metrics-type", "paid"] == asked.words(2)
    assert ["--metrics", "[::1]:0"] == Measuring(metrics="[::1]:0").words(2)
    assert [] == Measuring().words(2)


def test_other_machines_need_a_token(cli: Cli, shop: Postbox) -> None:
    """The error says which variable has it."""
    found = cli("relay", shop.file.path, "--once", "--metrics", "0.0.0.0:0")

    assert (2, True) == (found.code, "ONCEWARD_METRICS_TOKEN" in found.err)


@contextmanager
def running(home: Path, *words: str) -> Iterator[str]:
    """Run a command with metrics until the block ends, and yield their url."""
    command = [*ONCEWARD, *words, "--metrics", "127.0.0.1:0"]
    with Child(command, "stderr", cwd=home) as process:
        url = process.said("metrics at ")
        process.said("interrupt to stop")
        yield url.removeprefix("metrics at ").strip()
        process.stop()
    assert 143 == process.returncode


def scraped(url: str) -> str:
    """Return the text at a url."""
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
        text: str = answer.read().decode()
    return text
