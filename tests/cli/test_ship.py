"""``onceward ship``: what it prints, how it ends, and how it runs beside other work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[ship]' brings it")

from tests.cli.conftest import Cli
from tests.cli.test_processes import start
from tests.ports import free_port
from tests.waiting import until

from onceward import Postbox
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.changes import Limit
from onceward.fleet.ship.log import NoLog

WITHOUT = (
    "import sys; sys.modules['pyarrow'] = None; from onceward.ops.cli import main;"
    " sys.exit(main({tokens!r}))"
)
"""A process in which the extra is not installed."""


def _rows(log: Path, table: str = "outbox") -> int:
    try:
        return sum(batch.num_rows for batch in ShippedLog(str(log)).batches(table))
    except NoLog:
        return 0


def test_files_are_shipped_once(cli: Cli, home: Path, shop: Postbox, billing: Postbox) -> None:
    """A line for each file says how many rows went; the second time none do."""
    shop.send("billing", 1)
    first = cli("ship", home, "--to", home / "log", "--json")
    second = cli("ship", home, "--to", home / "log", "--json")

    assert (0, [("billing", 0), ("shop", 1)]) == (
        first.code,
        [(each["agent"], each["rows"]) for each in first.json["shipped"]],
    )
    assert [0, 0] == [each["rows"] for each in second.json["shipped"]]
    assert 1 == _rows(home / "log")


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_shipped(
    cli: Cli, home: Path, shop: Postbox
) -> None:
    """Exit code 6 says that some were not shipped, 1 that none was."""
    shop.send("shop", 1)
    (home / "notes.db").write_text("buy milk", encoding="utf-8")
    some = cli("ship", home, "--to", home / "log")
    none = cli("ship", home / "notes.db", "--to", home / "log")

    assert (6, 1) == (some.code, none.code)
    assert "not shipped" in some.err
    assert "notes.db" in some.err
    assert _rows(home / "log")


def test_a_restored_file_is_told(cli: Cli, home: Path, shop: Postbox) -> None:
    """A file that is older than its log begins another epoch, and the command says so."""
    shop.send("shop", 1)
    shop.close()
    whole = (home / "shop.db").read_bytes()
    with Postbox(home / "shop.db", start=False) as box:
        box.send("shop", 2)
    cli("ship", home / "shop.db", "--to", home / "log")
    (home / "shop.db").write_bytes(whole)

    told = cli("ship", home / "shop.db", "--to", home / "log", "--json")

    assert (0, "restored", 2) == (
        told.code,
        told.json["shipped"][0]["history"],
        told.json["shipped"][0]["epoch"],
    )
    assert "it was restored or copied" in told.err


def test_what_was_shipped_is_pruned_on_demand(
    cli: Cli, home: Path, shop: Postbox, billing: Postbox
) -> None:
    """--prune deletes what the log returns, and prints how many rows of each file."""
    shop.send("billing", 1)
    shop.run_until_idle()
    message = billing.receive(timeout=0)
    assert message is not None
    message.ack()
    billing.run_until_idle()
    shop.close()
    billing.close()

    done = cli("ship", home, "--to", home / "log", "--prune", "--keep", "0", "--json")

    assert {"shop": (1, 0), "billing": (2, 0)} == {
        each["agent"]: (each["rows"], each["kept"]) for each in done.json["pruned"]
    }
    assert (1, 1) == (_rows(home / "log"), _rows(home / "log", "processed"))


@pytest.mark.usefixtures("shop")
def test_a_timer_ships_until_it_is_interrupted(home: Path) -> None:
    """With --every what is sent later is shipped, too; a signal ends it with 128 and its number."""
    with start("ship", "shop.db", "--to", "log", "--every", "50ms", cwd=home) as child:
        with Postbox(home / "shop.db", start=False) as box:
            box.send("shop", 1)
        until(lambda: _rows(home / "log"))
        _, err = child.stop(signal.SIGINT)

    assert 130 == child.returncode, err


def test_a_signal_ends_a_slow_shipper_between_two_commits(home: Path, shop: Postbox) -> None:
    """A shipper whose rate leaves it hours to go does not wait for them."""
    first = Limit().rows
    shop.send_many(("shop", number) for number in range(first + 1))
    tokens = ("--every", "1h", "--rate", "0.5")
    with start("ship", "shop.db", "--to", "log", *tokens, cwd=home) as slow:
        until(lambda: _rows(home / "log"))
        _, err = slow.stop()

    assert (143, first) == (slow.returncode, _rows(home / "log")), err


@pytest.mark.usefixtures("shop")
def test_serve_ships_while_it_runs(home: Path) -> None:
    """With --ship-to the files of the home are shipped at intervals, and once at the end."""
    port = free_port()
    tokens = ("--listen", f"http://127.0.0.1:{port}", "--ship-to", "log", "--ship-every", "1h")
    with start("serve", ".", *tokens, cwd=home) as child:
        with Postbox(home / "shop.db", start=False) as box:
            box.send("shop", 1)
        _, err = child.stop()

    assert (143, 1) == (child.returncode, _rows(home / "log")), err


def test_mistakes_are_told(cli: Cli, home: Path, shop: Postbox) -> None:
    """Without files, with files that do not exist, or at no place it says what is wrong."""
    assert 2 == cli("ship", "--to", home / "log").code
    (home / "empty").mkdir()
    for missing in ("no.db", "empty", "*.sqlite"):
        assert 3 == cli("ship", shop.file.path, home / missing, "--to", home / "log").code
    assert 3 == cli("ship", home / "no.db", "--to", home / "log", "--every", "1s").code
    assert 2 == cli("ship", shop.file.path, "--to", "gopher://hole/log").code
    assert 2 == cli("ship", shop.file.path, "--to", "").code
    assert 2 == cli("ship", shop.file.path, "--to", home / "log", "--rate", 0).code
    assert 2 == cli("ship", shop.file.path, "--to", home / "log", "--every", "0s").code
    assert 2 == cli("serve", home, "--ship-to", home / "log", "--ship-every", 0).code
    assert not (home / "log").exists()


def test_without_the_extra_it_says_what_to_install(home: Path, shop: Postbox) -> None:
    """The command exists in every installation; without pyarrow it names the extra and stops."""
    tokens = ["ship", str(shop.file.path), "--to", "log"]
    command = [sys.executable, "-c", WITHOUT.format(tokens=tokens)]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)

    assert (2, "") == (done.returncode, done.stdout)
    assert "pip install 'onceward[ship]'" in done.stderr
    assert not (home / "log").exists()


def test_a_problem_is_an_object_on_demand(home: Path, cli: Cli, shop: Postbox) -> None:
    """With --json an error of the log is an object."""
    (home / "log").write_text("a file, no folder", encoding="utf-8")
    failed = cli("ship", shop.file.path, "--to", home / "log", "--json")

    assert 1 == failed.code
    assert json.loads(failed.err)["retryable"]
