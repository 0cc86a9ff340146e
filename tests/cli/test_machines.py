"""``keys``, ``serve``, ``peers ping`` and ``--listen``: agents on other machines."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pytest
from tests.children import ONCEWARD, Child
from tests.transports.over_http import scripted
from tests.waiting import until

from onceward import Postbox
from onceward.http import HttpListener
from onceward.keys import Keys
from onceward.message.clock import SystemClock
from onceward.ops.cli.home import _HomeFiles
from onceward.ops.cli.listening import Listening

Cli = Callable[..., Any]


def test_keys_are_made_added_listed_rotated_and_dropped(cli: Cli, home: Path) -> None:
    """The secret is printed once, by the command that made it; the list has none."""
    made = cli("keys", "new", "bob")
    [[secret]] = made.lines

    cli("keys", "add", "carl", stdin=f"{secret}\n")
    rotated = cli("keys", "rotate", "bob", "--json").json

    assert (Keys(home).secrets("carl"), "keys add AGENT" in made.err) == (
        Keys(home).secrets("bob")[1:],
        True,
    )
    listed = cli("keys", "ls", "--json")
    assert [("bob", 2, True), ("carl", 1, True)] == [
        (row["peer"], row["count"], row["mode_ok"]) for row in listed.json
    ]
    assert secret not in listed.out
    assert rotated["secret"] not in listed.out
    assert 1 == cli("keys", "rotate", "bob", "--finish", "--json").json["count"]
    assert 0 == cli("keys", "remove", "bob").code
    assert ["carl"] == [row["peer"] for row in cli("keys", "ls", "--json").json]


def test_keys_that_are_not_there_are_said(cli: Cli) -> None:
    """A key that exists is not made again, one that does not is named, a wrong one is refused."""
    assert 3 == cli("keys", "rotate", "bob").code
    assert 3 == cli("keys", "remove", "bob").code
    assert 2 == cli("keys", "add", "bob", "whsec_short").code
    cli("keys", "new", "bob")
    assert 2 == cli("keys", "new", "bob").code


@pytest.mark.parametrize("command", ["new bob", "add bob", "ls", "rotate bob", "remove bob"])
def test_keys_of_a_home_that_does_not_exist(cli: Cli, home: Path, command: str) -> None:
    """A name with a typo is told, with what comes before, and makes no home."""
    ran = cli("keys", *command.split(), "--home", "tpyo", stdin="whsec_" + "A" * 32)

    assert (3, "there is no folder tpyo") == (ran.code, ran.err[10:33])
    assert "or create it with onceward init AGENT --home tpyo" in ran.err
    assert not (home / "tpyo").exists()


def test_the_order_in_which_a_home_gets_a_key(cli: Cli, home: Path) -> None:
    """What the error of a home without a folder names makes it, and then the key is made."""
    before = cli("keys", "new", "bob", "--home", "srv/shop")
    [command] = re.findall(r"onceward (init .*)", before.err)
    made = cli(*command.replace("AGENT", "shop").split())
    after = cli("keys", "new", "bob", "--home", "srv/shop")

    assert (3, 0, 0) == (before.code, made.code, after.code)
    assert (home / "srv" / "shop" / "keys" / "bob").exists()


def test_two_operators_compare_fingerprints(cli: Cli, home: Path, tmp_path: Path) -> None:
    """The same secret has the same mark on both sides, another one another, and none tells it."""
    far = _made(tmp_path / "far")
    [[secret]] = cli("keys", "new", "bob").lines
    cli("keys", "add", "shop", "--home", far, stdin=secret)
    here, there = (cli("keys", "ls", "--home", each).lines[0][-1] for each in (home, far))
    cli("keys", "rotate", "bob")
    both = cli("keys", "ls").lines[0][-1].split()

    assert (here, here, 2) == (there, both[1], len(both))
    assert here not in secret


@pytest.fixture
def bob(home: Path) -> Iterator[str]:
    """Serve Bob from another home, and yield his url; the key for Shop is shared."""
    far = home / "far"
    far.mkdir()
    Keys(far).add("shop", Keys(home).create("bob"))
    server = HttpListener("http://127.0.0.1:0")
    with Postbox(far / "bob.db", agent="bob", start=False, listeners=[server]):
        yield server.url


@pytest.mark.usefixtures("shop")
def test_a_ping_tells_the_clock(cli: Cli, bob: str) -> None:
    """A peer that answers is named with the time it took and how far its clock is ahead."""
    assert 0 == cli("peers", "add", "bob", bob).code

    found = cli("peers", "ping", "bob", "--json").json

    assert ["peer", "url", "took_ms", "clock_ahead_ms", "release", "wire_version"] == list(found)
    assert (version("onceward"), 1) == (found["release"], found["wire_version"])
    assert abs(found["clock_ahead_ms"]) < 60_000


@pytest.mark.usefixtures("shop")
def test_a_ping_says_that_the_key_is_another(cli: Cli, home: Path, bob: str) -> None:
    """Another key, or none, is told with the commands that compare and add it."""
    cli("peers", "add", "bob", bob)
    Keys(home).rotate("bob")
    Keys(home).retire("bob")
    mark = Keys(home).list()[0].fingerprint
    other = cli("peers", "ping", "bob")
    Keys(home).remove("bob")
    none = cli("peers", "ping", "bob")

    assert (1, 1) == (other.code, none.code)
    assert "key or name: that home does not serve agent bob" in other.err
    assert f"must list shop with {mark}, otherwise" in other.err
    assert "onceward keys new bob" in none.err


@pytest.mark.usefixtures("shop")
def test_a_ping_says_that_the_clock_is_wrong(cli: Cli, home: Path) -> None:
    """A refusal with a time far from ours is told as a matter of clocks."""
    Keys(home).create("bob")
    late = {"date": "Mon, 01 Jan 2024 00:00:00 GMT"}
    with scripted(lambda _: (401, late, b"not taken\n")) as url:
        cli("peers", "add", "bob", url)
        found = cli("peers", "ping", "bob")

    assert "clock: ours is" in found.err


@pytest.mark.usefixtures("shop")
def test_a_ping_says_that_the_url_is_wrong(cli: Cli, home: Path) -> None:
    """No server, and a server that is none of ours, are told as such; a file needs no ping."""
    Keys(home).create("bob")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    cli("peers", "add", "bob", url)
    assert "url: no server was reached there" in cli("peers", "ping", "bob").err
    with scripted(lambda _: (404, {}, b"")) as other:
        cli("peers", "add", "bob", other)
        assert "no onceward at this url" in cli("peers", "ping", "bob").err
        cli("peers", "add", "bob", other.replace("http:", "https:"))
        assert "the server does not speak https" in cli("peers", "ping", "bob").err
    assert 2 == cli("peers", "ping", "shop").code


@pytest.mark.usefixtures("shop")
def test_a_ping_names_the_file_of_authorities_that_is_missing(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which setting names it."""
    Keys(home).create("bob")
    monkeypatch.setenv("ONCEWARD_HTTP_CA", "none.pem")
    cli("peers", "add", "bob", "https://127.0.0.1:1")

    assert "http_ca none.pem cannot be used" in cli("peers", "ping", "bob").err


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("status", [429, 503])
def test_a_ping_says_that_the_peer_is_busy(cli: Cli, home: Path, status: int) -> None:
    """A peer that takes a parcel just now is well: the error says to ask again."""
    Keys(home).create("bob")
    with scripted(lambda _: (status, {}, b"")) as other:
        cli("peers", "add", "bob", other)
        assert "try again" in cli("peers", "ping", "bob").err


@pytest.mark.usefixtures("shop")
def test_a_wrong_url_is_no_peers(cli: Cli) -> None:
    """``peers add`` refuses plain http to another machine."""
    found = cli("peers", "add", "bob", "http://bob.example")

    assert 2 == found.code
    assert "need https" in found.err


@pytest.mark.usefixtures("shop")
def test_the_doctor_examines_keys_and_machines(cli: Cli, home: Path, bob: str) -> None:
    """A key that others read is serious; a peer that answers is well, one that does not is told."""
    cli("peers", "add", "bob", bob)

    def found() -> list[tuple[str, str]]:
        rows = cli("doctor", "--json").json["findings"]
        return [(r["check"], r["level"]) for r in rows if r["check"] in {"keys", "machines"}]

    assert [("keys", "ok"), ("machines", "ok")] == found()
    (home / "keys" / "bob").chmod(0o644)
    assert [("keys", "serious"), ("machines", "warning")] == found()


def test_serve_needs_an_address_and_agents(cli: Cli, home: Path) -> None:
    """Without --listen it is a usage error, without agents there is nothing to serve."""
    assert 2 == cli("serve").code
    assert 3 == cli("serve", home, "--listen", "http://127.0.0.1:0").code
    assert "--behind-proxy" in cli("serve", home, "--listen", "http://0.0.0.0:0").err
    (home / "shop.db").touch()
    assert "is a file" in cli("serve", home / "shop.db", "--listen", "http://127.0.0.1:0").err


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from onceward import Postbox
from onceward.errors import InvalidArgument
try:
    exec(sys.argv[2])
except (ModuleNotFoundError, InvalidArgument) as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "code", "extra"),
    [
        ("starlette", "from onceward.http import HttpListener", "http"),
        (
            "httpcore2",
            "Postbox('a.db', agent='a').peers.add('b', 'https://b.example')",
            "http",
        ),
        ("starlette", "from onceward.http import PollListener", "http"),
        (
            "nats",
            "Postbox('a.db', agent='a').peers.add('b', 'nats://b.example/b')",
            "nats",
        ),
        (
            "nats",
            "import onceward.nats as n; Postbox('a.db', agent='a', listeners=[n.NatsListener('nats://b')])",
            "nats",
        ),
    ],
)
def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, library: str, code: str, extra: str
) -> None:
    """The class or url that needs an extra fails at once, not with its first message."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, library, code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"not installed: pip install 'onceward[{extra}]'" in ran.stdout


def test_a_served_home_takes_messages_until_it_is_terminated(cli: Cli, home: Path) -> None:
    """All agents of the home are served by one process; SIGTERM ends it gracefully with 143."""
    far = home / "far"
    for name in ("bob", "carl"):
        Postbox(_made(far) / f"{name}.db", agent=name, start=False).close()
        secret = Keys(home).create(name)
    Keys(home).add("carl", secret)
    Keys(far).add("shop", secret)
    Keys(home).add("bob", secret)
    command = [*ONCEWARD, "serve", far, "--json", "--listen", "http://127.0.0.1:0"]
    with Child(command, "stdout", "stderr") as child:
        said = child.read()
        url = said.partition(" at ")[2].partition(";")[0]
        with Postbox(home / "shop.db", agent="shop") as shop:
            shop.peers.add({"bob": url, "carl": url})
            for name in ("bob", "carl"):
                shop.send(name, {"to": name})
            shop.flush(timeout=60)
        out, _ = child.stop()

    assert "serving bob, carl" in said
    assert (143, "SIGTERM") == (child.returncode, json.loads(out)["signal"])
    for name in ("bob", "carl"):
        with Postbox(far / f"{name}.db", start=False) as box:
            message = box.receive()
            assert message is not None
            assert {"to": name} == message.body
            message.ack()


def test_a_home_that_cannot_be_listed_is_served_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a free descriptor for the list of files, no agent counts as gone; it is told once."""
    Postbox(home / "bob.db", agent="bob", start=False).close()

    def refuse(_: Path) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with _HomeFiles(home, Listening(), []) as files:
        first = [box.agent for box in files.look()]
        with monkeypatch.context() as lack:
            lack.setattr(os, "listdir", refuse)
            during = files.look(), files.look(), [box.agent for box in files.boxes.values()]
        after = files.look(), [box.agent for box in files.boxes.values()]

    assert (["bob"], ([], [], ["bob"]), ([], ["bob"])) == (first, during, after)
    assert 1 == capsys.readouterr().err.count("is not looked at: [Errno 24] Too many open files")


@contextmanager
def serving(*options: object) -> Iterator[Child]:
    """Run ``onceward serve`` in a process of its own; SIGTERM ends it."""
    with Child([*ONCEWARD, "serve", *options], "stderr") as child:
        yield child
        child.stop()


def url_of(child: Child) -> str:
    """Return the url that a process says it serves."""
    return child.read().partition(" at ")[2].partition(";")[0].strip()


def test_an_agent_that_is_created_later_is_served(cli: Cli, home: Path) -> None:
    """No restart is needed; an agent whose file is deleted is served no more."""
    far = _made(home / "far")
    for name in ("bob", "carl"):
        Keys(far).add("shop", Keys(home).create(name))
        Keys(far).retire("shop")
        Keys(home).remove(name)
    secret = (far / "keys" / "shop").read_text()
    for name in ("bob", "carl"):
        Keys(home).add(name, secret)
    assert 0 == cli("init", "bob", "--home", far).code
    with serving(far, "--listen", "http://127.0.0.1:0") as child:
        url = url_of(child)
        assert 0 == cli("init", "carl", "--home", far).code
        told = [child.read()]
        with Postbox(home / "shop.db", agent="shop") as shop:
            shop.peers.add("carl", url)
            shop.send("carl", "hello")
            left = shop.flush(timeout=60)
        (far / "bob.db").unlink()
        told.append(child.said("gone"))

    gone = f"{far / 'bob.db'} is gone: its agent is no longer served\n"
    assert ["also serving carl\n", gone] == [*map(text_of, told)]
    assert 0 == left


def text_of(line: str) -> str:
    """Return the text of a line of the log, without its time and level."""
    return line.partition(" INFO ")[2]


def test_a_file_that_cannot_be_served_is_said_once(cli: Cli, home: Path) -> None:
    """What is not an agent's file is named, and does not stop those that are."""
    far = _made(home / "far")
    cli("init", "bob", "--home", far)
    (far / "notes.db").write_text("no database")
    with serving(far, "--listen", "http://127.0.0.1:0") as child:
        told = [text_of(child.read()) for _ in range(2)]
        cli("init", "carl", "--home", far)
        told.append(text_of(child.read()))

    assert [True, True, True] == [
        told[0].startswith(f"{far / 'notes.db'} is not served: "),
        told[1].startswith("serving bob at"),
        told[2] == "also serving carl\n",
    ]


def test_agents_beyond_the_open_files_are_named(cli: Cli, home: Path) -> None:
    """A process that may open too few files says which agents it leaves; it serves all others."""
    far, names = _made(home / "far"), [f"agent{n:02}" for n in range(40)]
    for name in names:
        Postbox(far / f"{name}.db", agent=name, start=False).close()
    secret = Keys(far).create("shop")
    for name in names:
        Keys(home).add(name, secret)
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    serve = f"{code}; from onceward.ops.cli import main; main()"
    words = ["serve", far, "--listen", "http://127.0.0.1:0"]
    left, said = [], ""
    with Child([sys.executable, "-c", serve, *words], "stderr") as child:
        while not said.startswith("serving "):
            said = text_of(child.read())
            left.append(said)
        url = said.partition(" at ")[2].partition(";")[0].strip()
        served = said.removeprefix("serving ").partition(" at ")[0].split(", ")
        with Postbox(home / "shop.db", agent="shop") as shop:
            shop.peers.add(dict.fromkeys(served, url))
            for name in served:
                shop.send(name, "hello")
            waits = shop.flush(timeout=60)
        child.stop()

    assert (0, 0) == (waits, child.returncode)  # the code that it would exit with is not passed on
    assert names == sorted([*served, *(Path(each.split(".db")[0]).name for each in left[:-1])])
    assert {True} == {
        "may have 256 files open" in each and "ulimit -n" in each for each in left[:-1]
    }


def test_the_doctor_tells_the_connections_of_a_listener(cli: Cli, home: Path) -> None:
    """While a home is served, its connections are a finding; those it refused are a warning."""
    far = _made(home / "far")
    cli("init", "bob", "--home", far)
    words = ("--listen", "http://127.0.0.1:0", "--connections", 16)
    with serving(far, *words) as child:
        url = url_of(child)
        [mark] = until(lambda: list((far / "listening").glob("*")))
        calm = cli("doctor", far / "bob.db", "--json").json
        told = json.loads(mark.read_text()) | {"refused": 3, "refused_at": SystemClock().now()}
        mark.write_text(json.dumps(told))
        full = cli("doctor", far / "bob.db", "--json").json
    found = [
        each for one in (calm, full) for each in one["findings"] if each["check"] == "connections"
    ]

    assert ["ok", "warning"] == [each["level"] for each in found]
    assert f"at {url} has 0 of 16 connections" in found[0]["found"]
    assert "it has refused 3 for now" in found[1]["found"]
    assert [] == list((far / "listening").glob("*"))


@pytest.mark.parametrize("number", [0, 10**9])
def test_a_number_of_connections_that_cannot_be_is_refused(
    cli: Cli, home: Path, number: int
) -> None:
    """Each connection is an open file, of which a process may have so many."""
    done = cli("serve", home, "--listen", "http://127.0.0.1:0", "--connections", number)

    assert (2, True) == (done.code, "ulimit -n" in done.err)


@pytest.mark.parametrize("command", ["serve {home}", "relay {home}/shop.db"])
def test_an_agent_that_cannot_be_called_asks(cli: Cli, home: Path, bob: str, command: str) -> None:
    """``--ask PEER`` brings the messages of a peer that is registered at a url of http."""
    cli("init", "shop")
    cli("peers", "add", "bob", bob)
    with Postbox(home / "far" / "bob.db") as box:
        box.peers.add("shop", "poll:")
        box.send("shop", "hello")
        words = [*command.format(home=home).split(), "--ask", "bob"]
        with Child([*ONCEWARD, *words], "stderr") as child:
            left = box.flush(timeout=60)
            pinged = box.peers.ping("shop")
            _, told = child.stop()
    with Postbox(home / "shop.db", start=False) as shop:
        message = shop.receive()
        assert message is not None
        message.ack()

    assert (0, "hello", 143) == (left, message.body, child.returncode)
    assert abs(pinged.clock_ahead) < 60_000
    assert "asking bob" in told or "shop: running" in told


@pytest.mark.usefixtures("shop")
def test_what_cannot_be_asked_is_said(cli: Cli, home: Path) -> None:
    """A peer without a url of http, another file's peer, and several processes are told."""
    cli("peers", "add", "bob", "poll:")
    unknown = cli("relay", "shop.db", "--once", "--ask", "carl")
    polled = cli("relay", "shop.db", "--once", "--ask", "bob")
    nobody = cli("serve", home, "--ask", "carl")
    team = cli("work", "shop.db", "tests.cli.handlers:agent", "--processes", "2", "--ask", "bob")

    assert (3, 3, 3) == (unknown.code, polled.code, nobody.code)
    assert "no HTTP url for the peer carl: onceward peers add carl" in unknown.err
    assert "no HTTP url for the peer bob" in polled.err
    assert "no agent of this home has an HTTP url for the peer carl" in nobody.err
    assert team.code in {1, 2}


@pytest.mark.usefixtures("shop")
def test_a_relay_says_which_peers_it_leaves(cli: Cli) -> None:
    """Messages for peers that ask another process stay; the command says where they leave."""
    cli("peers", "add", "bob", "poll:")
    cli("send", "bob", "hello")
    ran = cli("relay", "shop.db", "--once")
    pinged = cli("peers", "ping", "bob")
    [peer] = cli("peers", "ls", "--json").json

    assert "bob poll for their parcels; they are left to the process that listens" in ran.err
    assert "bob has not polled for its parcels yet" in pinged.err
    assert (0, None) == (peer["failures"], peer["last_error"])


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_a_worker_keeps_no_connection_of_its_look_at_peers(home: Path) -> None:
    """It has read each file once when it starts, and the engines have connections of their own."""
    with Postbox(home / "ann.db", agent="ann", start=False) as box:
        box.peers.add("bob", "poll:")
        before = len(apsw.connections())
        Listening().tell_left(box)
        Listening(listen="https://127.0.0.1:0").tell_left(box)
        after = len(apsw.connections())

    assert before == after
