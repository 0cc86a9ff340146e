"""``homes``: two machines are connected by two commands on each, however many agents they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.cli.test_doctor import level
from tests.transports.homes import Home
from tests.transports.homes import home as served

from onceward import Postbox
from onceward.homes import Homes

Cli = Callable[..., Any]
AGENTS = 100


@pytest.fixture
def far(home: Path) -> Iterator[Home]:
    """Serve an agent of another home."""
    with served(home / "far", ("bob",)) as found:
        yield found


def test_two_homes_of_a_hundred_agents_are_connected_by_two_commands_on_each(
    cli: Cli, tmp_path: Path
) -> None:
    """One row and one key for each home; each agent then sends to one of the other home."""
    names = [f"{n:02}" for n in range(AGENTS)]
    with (
        served(tmp_path / "a", [f"a{n}" for n in names]) as a,
        served(tmp_path / "b", [f"b{n}" for n in names]) as b,
    ):
        marks, added = dict[str, str](), list[int]()
        for each in (a, b):
            marks[each.folder.name] = cli("homes", "show", "--home", each.folder, "--json").json[
                "fingerprint"
            ]
        for each, other in ((a, b), (b, a)):
            pinned = ("--fingerprint", marks[other.folder.name], "--home", each.folder)
            added.append(cli("homes", "add", other.url, *pinned).code)
        for n in names:
            a.boxes[f"a{n}"].send(f"b{n}", n)
            a.boxes[f"a{n}"].run_until_idle()
        arrived = [box.receive() for box in b.boxes.values()]
        for message in filter(None, arrived):
            message.ack()
        listed = cli("homes", "ls", "--home", a.folder, "--json").json

        assert [0, 0] == added
        assert names == [message.body for message in arrived if message is not None]
        assert [AGENTS] == [row["agents"] for row in listed]
        for each in (a, b):
            assert 1 == _count(each.folder / "directory.db", "homes")
            assert ["home.key"] == [path.name for path in (each.folder / "identity").iterdir()]
            assert not (each.folder / "keys").exists()
        urls = {peer.url for box in a.boxes.values() for peer in box.peers.list()}
        assert {None} == urls


def _count(path: Path, table: str) -> int:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as con:
        [(found,)] = con.execute(f"SELECT count(*) FROM {table}")
        return int(found)


@pytest.mark.usefixtures("shop")
def test_homes_are_shown_added_listed_and_removed(cli: Cli, home: Path, far: Home) -> None:
    """The first side is told that the other does not know it yet."""
    ours = cli("homes", "show", "--json").json["fingerprint"]
    first = cli("homes", "add", far.url, "--fingerprint", far.fingerprint, "--name", "bobs")
    far.homes.add("poll:", ours, "shops")
    found = cli("homes", "ping", "bobs", "--json").json

    assert (0, True) == (first.code, "bobs was added, but does not take our requests" in first.err)
    assert ("bobs", far.url, 1) == (found["name"], found["url"], found["agents"])
    assert abs(found["clock_ahead_ms"]) < 60_000
    assert [["bob", "bobs", "[]", ""]] == cli("homes", "agents").lines
    assert ["bobs"] == [row["name"] for row in cli("homes", "ls", "--json").json]
    assert "shop" in {each.name for each in far.homes.agents()}
    assert 0 == cli("homes", "remove", "bobs").code
    assert [] == cli("homes", "ls", "--json").json
    assert 3 == cli("homes", "remove", "bobs").code
    assert 3 == cli("homes", "ping", "bobs").code
    assert home.is_dir()


@pytest.mark.usefixtures("shop")
def test_another_fingerprint_is_told(cli: Cli, far: Home) -> None:
    """The command ends with its own code and both fingerprints, and adds nothing."""
    wrong = f"SHA256:{'A' * 43}"
    refused = cli("homes", "add", far.url, "--fingerprint", wrong)
    malformed = cli("homes", "add", far.url, "--fingerprint", "abc")

    assert (7, 2) == (refused.code, malformed.code)
    assert far.fingerprint in refused.err
    assert "onceward homes show" in malformed.err
    assert [] == cli("homes", "ls", "--json").json


def test_a_rotation_prints_the_new_fingerprint(cli: Cli, home: Path) -> None:
    """Without a key it says which command creates one."""
    none = cli("homes", "rotate")
    before = cli("homes", "show").lines[0][0]
    after = cli("homes", "rotate").lines[0][0]

    assert (3, True) == (none.code, "onceward homes show" in none.err)
    assert before != after
    assert after == Homes(home).show().fingerprint


@pytest.mark.usefixtures("shop")
def test_doctor_names_a_home_that_is_not_reached(cli: Cli, far: Home) -> None:
    """It is ok while both know each other, a warning without, serious if the key is another."""
    none = [each["check"] for each in cli("doctor", "--json").json["findings"]]
    ours = cli("homes", "show", "--json").json["fingerprint"]
    far.homes.add("poll:", ours, "shops")
    cli("homes", "add", far.url, "--fingerprint", far.fingerprint, "--name", "bobs")
    reached = level(cli("doctor", "--json"), "homes")
    far.homes.remove("shops")
    unknown = cli("doctor", "--json")
    (far.folder / "identity" / "home.key").unlink()
    far.homes.show()
    other = cli("doctor", "--json")

    assert "homes" not in none
    assert ("ok", "warning", "serious") == (reached, level(unknown, "homes"), level(other, "homes"))
    assert "homes ls must list" in unknown.out or "homes add with" in unknown.out


def test_why_names_the_cause_for_an_agent_elsewhere(cli: Cli, shop: Postbox, far: Home) -> None:
    """A home that refuses us is told as such, not as an agent without an address."""
    ours = cli("homes", "show", "--json").json["fingerprint"]
    far.homes.add("poll:", ours, "shops")
    cli("homes", "add", far.url, "--fingerprint", far.fingerprint, "--name", "bobs")
    far.homes.remove("shops")
    shop.send("bob", 1)
    shop.run_until_idle()
    said = cli("why")
    cli("homes", "remove", "bobs")

    assert "401 without a signature" in said.out
    assert "peers add" not in said.out
    assert "peers add" in cli("why").out


@pytest.mark.usefixtures("shop")
def test_doctor_names_a_damaged_key(cli: Cli, home: Path) -> None:
    """The key of the home is read by its owner only."""
    cli("homes", "show")
    (home / "identity" / "home.key").chmod(0o644)

    assert "serious" == level(cli("doctor", "--json"), "homes")
