"""``doctor``: what it finds, and the cure that it names."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child, run
from tests.wrong_values import put

from onceward import Agent, Context, Postbox, Run, Tuning
from onceward.errors import OutcomeUnknown
from onceward.file.identity import supersede
from onceward.message.clock import SystemClock
from onceward.message.parcel import Takeover
from onceward.ops.cli import findings
from onceward.ops.views import handles
from onceward.ops.views.handles import Holder
from onceward.testing import Controls, ManualClock

Cli = Callable[..., Any]
CHECKS = [
    "sqlite",
    "permissions",
    "disk",
    "space",
    "handles",
    "schema",
    "values",
    "write",
    "wal",
    "backup",
    "clock",
    "paused",
    "held",
    "breakers",
    "dead letters",
    "lanes",
    "schedules",
    "replies",
    "pools",
    "keys",
    "delivery",
    "handling",
    "runs",
    "leases",
    "positions",
    "limits",
    "drops",
]


def level(ran: Any, check: str) -> str:
    """Return the level of the only finding of one check; anything but ok has a cure."""
    [finding] = [finding for finding in ran.json["findings"] if finding["check"] == check]
    assert (finding["level"] == "ok") == (not finding["cure"])
    return str(finding["level"])


@pytest.mark.usefixtures("shop")
def test_a_sound_file_is_healthy(cli: Cli) -> None:
    """Every check is named, none is serious; the disk may be one that a restart empties."""
    ran = cli("doctor", "--json")

    assert 0 == ran.code
    assert ["path", "healthy", "findings", "changes"] == list(ran.json)
    assert [] == ran.json["changes"]
    assert CHECKS == [finding["check"] for finding in ran.json["findings"]]
    assert ["check", "level", "found", "cure"] == list(ran.json["findings"][0])
    assert {"ok"} == {
        finding["level"] for finding in ran.json["findings"] if finding["check"] != "disk"
    }


def test_it_writes_for_real_and_leaves_nothing(cli: Cli, shop: Postbox) -> None:
    """One commit that is seen elsewhere; no message, no row, no total is changed by it."""
    before = shop.file.stats()

    assert "ok" == level(cli("doctor", "--json"), "write")
    assert before == shop.file.stats()


def test_mail_that_others_may_read_is_serious(cli: Cli, shop: Postbox) -> None:
    """The modes of the file and its side files are looked at; the rest is examined all the same."""
    shop.file.path.chmod(0o644)

    ran = cli("doctor", "--json")

    assert (1, False, "serious") == (ran.code, ran.json["healthy"], level(ran, "permissions"))
    assert "ok" == level(ran, "write")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_change_is_a_warning(cli: Cli, shop: Postbox, mode: int) -> None:
    """A user that may add files there may put a WAL beside a file that is closed."""
    shop.file.path.parent.chmod(mode)

    assert "warning" == level(cli("doctor", "--json"), "permissions")


def test_a_second_name_is_serious_and_nothing_is_opened(cli: Cli, home: Path) -> None:
    """Each hard link would get a WAL of its own."""
    cli("init", "shop")
    (home / "other.db").hardlink_to(home / "shop.db")

    ran = cli("doctor", "--json")

    assert (1, "serious", "warning") == (ran.code, level(ran, "disk"), level(ran, "write"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs4", "serious"), ("fuse.sshfs", "serious"), ("tmpfs", "warning"), ("ext4", "ok")],
)
def test_the_file_system_is_named(
    cli: Cli, shop: Postbox, monkeypatch: pytest.MonkeyPatch, kind: str, expected: str
) -> None:
    """Locks that do not hold are serious, memory is a warning."""
    assert shop.agent
    monkeypatch.setattr(findings, "filesystem", lambda _: kind)

    assert expected == level(cli("doctor", "--json"), "disk")


@pytest.mark.parametrize(
    ("deleted", "mixed", "expected"),
    [(True, False, "serious"), (False, True, "warning"), (False, False, "ok")],
)
@pytest.mark.usefixtures("shop")
def test_other_processes_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, deleted: bool, mixed: bool, expected: str
) -> None:
    """A process that holds a deleted file commits into no file that can be found."""
    monkeypatch.setattr(findings, "holders", lambda _: [Holder(7, deleted, mixed)])

    assert expected == level(cli("doctor", "--json"), "handles")


@pytest.mark.usefixtures("shop")
def test_a_process_that_can_save_a_deleted_wal_is_not_to_be_ended(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the newest commits; the file is not opened, which would create a new WAL."""
    holder = Holder(7, deleted=False, mixed=False, wal_deleted=True)
    monkeypatch.setattr(findings, "holders", lambda _: [holder])

    ran = cli("doctor", "--json")

    assert (1, "warning") == (ran.code, level(ran, "write"))
    found, cure = said(ran, "handles")
    assert "the -wal was deleted while process 7 has the file open" == found
    assert cure.startswith("end and start no process")


def test_a_loss_is_told_after_the_process_that_noticed_it(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 30 days the file itself says that commits were lost, then its peers no longer know."""
    path = home / "shop.db"
    with Postbox(path, agent="shop", start=False) as shop:
        shop._db.checkpoint(truncate=True)
        shop.send("shop", 1)
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink()
        write = f"sqlite3.connect({str(path)!r}).execute('CREATE TABLE other (id)')"
        run([*PYTHON, "-c", f"import sqlite3; {write}"])
        with pytest.raises(OutcomeUnknown):
            shop.send("shop", 2)

    found, cure = said(ran := cli("doctor", "--json"), "loss")

    assert (0, "warning") == (ran.code, level(ran, "loss"))
    assert re.match(r"commits were lost \d+ s ago: the -wal was deleted", found)
    assert f"onceward check {home}/*.db" in cure
    later = SystemClock().now() + findings.MONTH
    monkeypatch.setattr(SystemClock, "now", lambda _: later)
    assert "loss" not in {each["check"] for each in cli("doctor", "--json").json["findings"]}


def test_a_holder_is_seen_by_what_its_descriptors_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process table is read by name only, so that no lock of the file is touched."""
    path = tmp_path / "shop.db"
    for pid, target in (
        (11, f"{path}"),
        (12, f"{path}-wal (deleted)"),
        (13, f"{tmp_path}/other.db"),
        (12, f"{path}"),
        (14, f"{path} (deleted)"),
        (15, f"{tmp_path}/moved.db"),
        (15, f"{path}-shm"),
    ):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / str(pid) / "fd" / f"{abs(hash(target))}").symlink_to(target)
    (tmp_path / "proc" / "11" / "maps").write_text(
        "site-packages/apsw/__init__.so\nlib-dynload/_sqlite3.so\n"
    )
    monkeypatch.setattr(handles, "PROC", tmp_path / "proc")

    assert [
        Holder(11, deleted=False, mixed=True),
        Holder(12, deleted=False, mixed=False, wal_deleted=True),
        Holder(14, deleted=True, mixed=False),
        Holder(15, deleted=True, mixed=False),
    ] == handles.holders(path)


def test_a_file_without_schema_is_serious(cli: Cli, home: Path) -> None:
    """The doctor does not migrate; it says what does."""
    (home / "empty.db").touch(mode=0o600)

    ran = cli("doctor", "empty.db", "--json")

    assert (1, "serious") == (ran.code, level(ran, "schema"))
    assert 0 == (home / "empty.db").stat().st_size


def test_a_damaged_file_is_serious(cli: Cli, home: Path) -> None:
    """What cannot be opened is a finding, not an abort."""
    (home / "broken.db").write_bytes(b"no database " * 400)
    (home / "broken.db").chmod(0o600)

    ran = cli("doctor", "broken.db", "--json")

    assert 1 == ran.code
    assert "serious" in {finding["level"] for finding in ran.json["findings"]}


def test_a_clock_that_is_behind_is_serious(
    cli: Cli, shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due mail would wait until the clock has caught up."""
    shop.send("shop", 1)
    monkeypatch.setattr(SystemClock, "now", lambda _: 1_700_000_000_000)

    assert "serious" == level(cli("doctor", "--json"), "clock")


def test_a_wal_beyond_its_limit_is_serious(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the setting that maintenance goes by, too."""
    assert billing.agent
    monkeypatch.setenv("ONCEWARD_WAL_LIMIT", str(1 << 20))
    for _ in range(2):
        shop.send("billing", "x" * 1_000_000)

    assert "serious" == level(cli("doctor", "--json"), "wal")


def test_what_an_operator_should_know_is_a_warning(
    cli: Cli, shop: Postbox, buried: list[str]
) -> None:
    """Paused, dead letters, breakers and an unknown recipient: the exit code stays 0."""
    assert buried
    shop.peers.add("far", "memory:nowhere")
    shop.send("far", 1)
    shop.run_until_idle()
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_peers SET breaker = 'open', failures = 5 WHERE name = 'far'")
    shop.peers.remove("far")
    shop.file.pause()

    ran = cli("doctor", "--json")

    assert 0 == ran.code
    assert {"warning"} == {
        level(ran, check) for check in ("paused", "breakers", "dead letters", "delivery")
    }


def test_messages_that_are_not_delivered_are_a_warning(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due for more than a minute: no relay runs, or the peer is down."""
    assert billing.agent
    shop.send("billing", 1)
    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now + 120_000)

    assert "warning" == level(cli("doctor", "--json"), "delivery")


def test_a_file_that_was_taken_over_is_not_resumed(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """The machine is named; no cure is refused; what can leave no more is a warning."""
    shop.send(billing.agent, 1)
    ended = Takeover(1, SystemClock().now(), "new-machine").text
    shop._db.write(lambda tx: supersede(tx, ended))

    ran = cli("doctor", "--json")

    assert "new-machine has taken over" in said(ran, "takeover")[0]
    assert "shop was taken over by another machine" in said(ran, "paused")[0]
    assert "1 message did not leave before the takeover" == said(ran, "delivery")[0]
    assert [] == [each for each in ran.json["findings"] if "resume" in str(each["cure"])]


def test_the_doctor_leaves_no_wal_behind(cli: Cli, home: Path) -> None:
    """The last close removes the WAL: a file that is moved alone is complete."""
    cli("init", "shop")

    assert 0 == cli("doctor").code
    assert ["directory.db", "shop.db", "shop.db-run"] == sorted(
        path.name for path in home.iterdir()
    )


def test_a_whole_home_is_examined_at_once(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """One line for each finding that is not ok, with its file; one document for each file."""
    billing.file.pause()
    disk = {"disk"}  # which may be one that a restart empties

    ran = cli("doctor", shop.file.path, billing.file.path)
    told = cli("doctor", shop.file.path, billing.file.path, "--json")

    assert [[str(billing.file.path), "paused", "warning"]] == [
        line[:3] for line in ran.lines if line[1] not in disk
    ]
    assert "2 files examined, 0 with a serious finding" in ran.err
    assert (0, True) == (told.code, told.json["healthy"])
    assert [(str(path), True) for path in (shop.file.path, billing.file.path)] == [
        (one["path"], one["healthy"]) for one in told.json["files"]
    ]


def test_a_missing_file_is_nothing_to_examine(cli: Cli) -> None:
    """As for every command."""
    assert 3 == cli("doctor").code


LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell which process holds a file"
)
HOLD = """
import sys, time
from onceward import Postbox
box = Postbox(sys.argv[1], agent="shop", start=False)
with box.begin() as tx:
    if sys.argv[2] == "write":
        tx.execute("CREATE TABLE held (n)")
    print("here", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path: Path, what: str = "write") -> Iterator[int]:
    """Run a process that holds the file inside a transaction; yield its id, kill it at the end."""
    with Child([*PYTHON, "-c", HOLD, path, what], "stdout") as process:
        assert "here" == process.hear()
        yield process.pid


def said(ran: Any, check: str) -> tuple[str, str]:
    """Return what one check found, and the cure that it names."""
    [finding] = [finding for finding in ran.json["findings"] if finding["check"] == check]
    return finding["found"], finding["cure"]


@LINUX
def test_a_stopped_process_that_writes_is_named(cli: Cli, home: Path) -> None:
    """It blocks all writers; the doctor does not wait for it, and says how to continue it."""
    path = home / "shop.db"
    cli("init", "shop")
    with holder(path) as pid:
        assert pid == handles.writer(path)
        os.kill(pid, signal.SIGSTOP)
        while not handles.holders(path)[0].stopped:
            pass
        ran = cli("doctor", "--json")

    assert (1, "serious", "warning") == (ran.code, level(ran, "handles"), level(ran, "write"))
    assert said(ran, "handles") == (
        f"process {pid} is stopped and holds the write lock: no other process can write",
        f"kill -CONT {pid}, or end it: its uncommitted changes are undone",
    )


@LINUX
def test_a_process_that_only_writes_too_long_is_named(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not stopped, so the doctor tries; when its patience ends it says whose turn it is."""
    monkeypatch.setenv("ONCEWARD_BUSY_TIMEOUT", "0.2")
    cli("init", "shop")
    with holder(home / "shop.db") as pid:
        ran = cli("doctor", "--json")

    assert (1, "serious") == (ran.code, level(ran, "open"))
    assert said(ran, "open")[1].startswith(f"examine process {pid}, it holds the write lock")


@LINUX
@pytest.mark.parametrize(
    "command", [("doctor",), ("stats",), ("init", "shop"), ("work", "shop.db", "m:agent")]
)
def test_a_file_that_was_deleted_under_a_process_is_not_begun_anew(
    cli: Cli, home: Path, command: tuple[str, ...]
) -> None:
    """No command creates a file beside the old one's WAL; what the process holds can be copied."""
    path = home / "shop.db"
    cli("init", "shop")
    (home / "m.py").write_text(
        "from onceward import Agent\nagent = Agent('shop')\n", encoding="utf-8"
    )
    with holder(path) as pid:
        path.unlink()
        ran = cli(*command)
        assert not path.exists()

    assert 3 == ran.code
    assert (
        f"shop.db was moved or deleted, and process {pid} still has it: kill -STOP {pid},"
        " copy it and its -wal" in ran.err
    )


@contextmanager
def one_of_two_taken(home: Path, billing: Postbox) -> Iterator[None]:
    """Hold one of two messages to shop in a block, and acknowledge it at the end."""
    with Postbox(home / "shop.db", agent="shop", start=False, lease=600) as shop:
        for session in ("a", "b"):
            billing.session(session).send("shop", 1)
        billing.run_until_idle()
        held = shop.receive()
        yield
        assert held is not None
        held.ack()


def later(monkeypatch: pytest.MonkeyPatch, seconds: int = 120) -> None:
    """Let two minutes pass, or fewer seconds."""
    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now + 1000 * seconds)


def test_messages_that_are_not_handled_are_a_warning(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrived: only the recipient's own file can say that no worker runs."""
    billing.send("shop", 1)
    billing.run_until_idle()
    assert "ok" == level(cli("doctor", "--json"), "handling")
    later(monkeypatch)

    ran = cli("doctor", "--json")

    found, cure = said(ran, "handling")
    assert ("messages wait in 1 lane, the oldest from 2 m ago; no worker takes them", True) == (
        found,
        cure.startswith("call receive, or start a worker: onceward work "),
    )
    assert shop.agent


@pytest.mark.usefixtures("shop")
def test_a_missing_worker_is_told_after_some_seconds(
    cli: Cli, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who has just started the program does not wait a minute for the answer."""
    billing.send("shop", 1)
    billing.run_until_idle()
    later(monkeypatch, 6)

    found, cure = said(cli("doctor", "--json"), "handling")

    assert found == "messages wait in 1 lane, the oldest from 6 s ago; no worker takes them"
    assert cure.startswith("call receive, or start a worker: onceward work ")


def test_messages_behind_a_handler_of_some_seconds_are_no_warning(
    cli: Cli, home: Path, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has one of them, so it may take the other when it is done."""
    with one_of_two_taken(home, billing):
        later(monkeypatch, 6)
        verdict = level(cli("doctor", "--json"), "handling")

    assert "ok" == verdict


@pytest.mark.usefixtures("billing")
def test_a_call_that_was_left_is_a_warning(cli: Cli, home: Path) -> None:
    """An aborted call that does not return is an operator's business while its process lives."""
    agent, clock, said_so = Agent("shop"), ManualClock(), list[tuple[str, str]]()

    @agent.runs(mode="steer")
    def deaf(run: Run) -> None:
        if run.previous is None:
            shop.send("shop", 2)
            shop.run_until_idle()
            clock.advance(5)
            shop.run_until_idle()
            said_so.append(said(cli("doctor", "--json"), "runs"))

    with Postbox(
        home / "shop.db",
        agent=agent,
        start=False,
        testing=Controls(clock=clock),
        tuning=Tuning(abort_grace=5),
    ) as shop:
        shop.send("shop", 1)
        shop.run_until_idle()

        assert ["1 calls of aborted runs have not returned"] == [found for found, _ in said_so]
        assert "ok" == level(cli("doctor", "--json"), "runs")


def test_mail_behind_a_handler_that_does_not_end_is_a_warning(
    cli: Cli, home: Path, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is in hand, so a worker runs: it hangs, or is too slow."""
    with one_of_two_taken(home, billing):
        later(monkeypatch)
        found, cure = said(cli("doctor", "--json"), "handling")

    assert "messages wait in 1 lane, the oldest from 2 m ago; leased: 1 lane" == found
    assert "ls lanes --state leased" in cure


def test_a_lane_behind_a_message_that_fails_is_a_warning(
    cli: Cli, home: Path, billing: Postbox
) -> None:
    """Its attempts, what the handler said and its next try are named, from the first failure."""
    agent = Agent("shop")

    @agent.on("job")
    def job(_: int, ctx: Context) -> None:
        del ctx
        raise KeyError("cents")

    with Postbox(
        home / "shop.db",
        agent=agent,
        start=False,
        delivery_retry="600s ±0%",
        handler_retry="600s ±0%",
    ) as shop:
        message = billing.send("shop", 1, type="job")
        billing.run_until_idle()
        shop.run_until_idle()
        once, _ = said(cli("doctor", "--json"), "lanes")
        with shop.begin() as tx:
            tx.execute("UPDATE _onceward_inbox SET attempts = 3")
        found, cure = said(cli("doctor", "--json"), "lanes")

    begin = f"1 lane of shop failed and will be retried: {message[:13]}… failed "
    assert once.startswith(f"{begin}once (KeyError: 'cents'); next try in ")
    assert found.startswith(f"{begin}3 times (KeyError: 'cents'); next try in ")
    assert f"onceward show {message} --db {home / 'shop.db'}" == cure


def test_a_pool_without_members_is_a_warning_and_a_full_one_after_a_minute(
    cli: Cli, home: Path, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a member that has messages and no process."""
    with Postbox(home / "shop.db", agent="shop", start=False) as shop:
        shop.pools.add("work", "billing", credits=1)
        for _ in range(2):
            shop.send("work", 1, type="job")
        shop.run_until_idle()
        busy = level(cli("doctor", "--json"), "pools")
        later(monkeypatch)
        late = said(cli("doctor", "--json"), "pools")
        shop.pools.remove("work", "billing")
        found, cure = said(cli("doctor", "--json"), "pools")

    full = "each member of work has as many messages as it takes: 1 in flight"
    assert ("ok", f"1 message of shop waits: {full}") == (busy, late[0])
    assert "1 message of shop waits: no agent serves the pool work" == found
    assert f"onceward pools ls --db {home / 'shop.db'}" == cure


def test_a_handler_that_waits_long_for_a_reply_is_a_warning(
    cli: Cli, home: Path, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message, its question and the agent that is to answer it are named."""
    agent, asked = Agent("shop"), "SELECT head_id, awaits, request_id FROM onceward_lanes"

    @agent.on("job")
    def job(_: int, ctx: Context) -> None:
        ctx.ask("billing", 1, type="question", reply=int)

    with Postbox(home / "shop.db", agent=agent, start=False) as shop:
        message = billing.send("shop", 1, type="job")
        billing.run_until_idle()
        shop.run_until_idle()
        assert "ok" == level(cli("doctor", "--json"), "replies")
        later(monkeypatch)
        found, cure = said(cli("doctor", "--json"), "replies")
        [(head, awaits, request)] = shop.query(asked)

    assert (message, "billing") == (head, awaits)
    assert "Waits for an answer of billing, asked 2 m ago" == found
    assert f"onceward show {request} --db {home / 'shop.db'}" == cure


def test_a_peer_that_fails_is_named_before_its_breaker_opens(cli: Cli, shop: Postbox) -> None:
    """Three pushes failed in a row: the peer is named, not a missing relay."""
    shop.peers.add("far", "memory:nowhere")
    shop.send("far", 1)
    for _ in range(3):
        shop.run_until_idle()
        shop.peers.reset("far")
    with shop.begin() as tx:
        tx.execute(
            "UPDATE _onceward_peers SET failures = 3, last_error = 'Unreachable: away' "
            "WHERE name = 'far'"
        )

    assert (
        "Pushes to far failed 3 times in a row (Unreachable: away)"
        == said(cli("doctor", "--json"), "breakers")[0].partition(";")[0]
    )


def test_a_limit_that_is_nearly_reached_is_a_warning(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """Nine tenths are in use: what comes next may be refused."""
    assert billing.agent
    shop.limits.set("session", "*", messages=2)
    shop.session("a").send("billing", 1)
    assert "ok" == level(cli("doctor", "--json"), "limits")
    shop.session("a").send("billing", 2)

    found, cure = said(cli("doctor", "--json"), "limits")

    assert found.startswith("reached or nearly reached: session a holds 2 messages")
    assert "onceward limits set" in cure


def test_a_paused_type_and_a_set_limit_are_told(cli: Cli, shop: Postbox) -> None:
    """The pause with its cure; the limit of a handler with what its code declares."""
    shop.limits.set("handler", "order", rate="10/s", concurrency=2)
    shop.file.pause(type="order")

    found, cure = said(cli("doctor", "--json"), "paused")
    limits, _ = said(cli("doctor", "--json"), "limits")

    assert found.startswith("order was paused")
    assert "onceward resume --type order" in cure
    assert (
        "order is limited to 10/s, 2 at once (declared: not known until a worker claims)" in limits
    )


def test_messages_that_a_policy_dropped_are_a_warning(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """Scope and policy are named; refusing instead is a cure."""
    assert billing.agent
    shop.limits.set("session", "*", messages=1, overflow="drop_old")
    for n in range(3):
        shop.session("a").send("billing", n)

    found, cure = said(cli("doctor", "--json"), "drops")

    assert "dropped: 2 by drop_old at session a" == found
    assert "or let it refuse" in cure


def test_a_clock_that_was_ahead_does_not_make_the_write_fail(cli: Cli, shop: Postbox) -> None:
    """A commit is a commit, also in a file that has seen a later time than ours."""
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_file_info SET clock_at = clock_at + 3600000")

    assert "ok" == level(cli("doctor", "--json"), "write")


FAULTS = """
UPDATE _onceward_lanes SET owner = 'other/1', leased_seqs = '[1]', due_at = 4102444800000;
INSERT INTO _onceward_poll_cursors (session, seq, read_at) VALUES ('default', 1000, 1);
"""


@pytest.mark.broken("the faults are planted")
def test_repair_mends_and_says_each_change(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A dry run says the same and changes nothing; after the repair every finding is ok."""
    billing.send("shop", "hello")
    billing.run_until_idle()
    shop._db.write(lambda tx: tx.rows(FAULTS))
    shop.file.path.chmod(0o644)

    found = cli("doctor", "--json")
    would = cli("doctor", "--repair", "--dry-run", "--json").json["changes"]
    still = cli("doctor", "--json").json["findings"]
    ran = cli("doctor", "--repair", "--json")

    checks = ("permissions", "leases", "positions")
    assert ["serious", "warning", "serious"] == [level(found, check) for check in checks]
    assert [each["check"] for each in would] == [*checks]
    assert {True} == {each in still for each in found.json["findings"] if each["check"] in checks}
    assert would == ran.json["changes"]
    assert ["ok"] * 3 == [level(ran, check) for check in checks]
    assert 0o600 == shop.file.path.stat().st_mode & 0o777


@pytest.mark.usefixtures("shop")
def test_a_dry_run_is_one_of_a_repair(cli: Cli) -> None:
    """Alone it is a usage error, as doctor changes nothing."""
    assert 2 == cli("doctor", "--dry-run").code


@pytest.mark.broken("the fault is planted")
def test_a_repair_notes_each_change(cli: Cli, shop: Postbox) -> None:
    """The table stays the findings; changes are lines beside it."""
    shop.file.path.chmod(0o644)

    assert "would change permissions" in cli("doctor", "--repair", "--dry-run").err
    assert "changed permissions: shop.db 0644: set to 0600" in cli("doctor", "--repair").err


def test_a_schedule_that_the_code_declares_no_longer_is_a_warning(cli: Cli, home: Path) -> None:
    """It is paused; the finding names it, and how to be rid of it."""
    before, after = Agent("shop"), Agent("shop")
    before.every("1h", name="nightly")(lambda _: None)
    after.on("job")(lambda _: None)
    for agent in (before, after):
        Postbox(home / "shop.db", agent=agent).close()
    ran = cli("doctor", "--json")
    found, cure = said(ran, "schedules")

    assert "warning" == level(ran, "schedules")
    assert "Schedule nightly is paused: the code of shop no longer declares it" == found
    assert "onceward schedules remove nightly" in cure


def test_a_file_ahead_of_the_wall_clock_is_told(cli: Cli, shop: Postbox) -> None:
    """By the doctor, and by a note beside the schedules, whose dates go by the wall clock."""
    shop.schedules.add("nightly", every="1h")
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_file_info SET clock_at = clock_at + 86400000")
    shop.close()
    listed, ran = cli("schedules", "ls"), cli("doctor", "--json")

    assert "s ahead of the wall clock" in listed.err
    assert "serious" == level(ran, "clock")
    assert "behind the file's time" in said(ran, "clock")[0]


def test_messages_that_wait_are_counted_where_nothing_is_amiss(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """Those that came a moment ago, and those of a paused agent."""
    shop.send_many([("billing", n) for n in range(6)])
    due = found(cli, "shop", "delivery")
    shop.run_until_idle()
    fresh = found(cli, "billing", "handling")
    billing.file.pause()
    paused = found(cli, "billing", "handling")

    assert "6 messages are due, none for longer than a minute" == due
    assert "6 messages wait, none ready for longer than a minute" == fresh
    assert "6 messages wait until the agent is resumed" == paused
    assert "no message waits" == found(cli, "shop", "handling")


@pytest.mark.usefixtures("buried")
def test_the_doctor_says_what_why_says(cli: Cli, shop: Postbox) -> None:
    """One sentence for one trouble, whichever command is asked."""
    [told] = cli("why", "--json").json
    found, cure = said(cli("doctor", "--json"), "dead letters")

    assert told["text"] == found
    assert cure == f"onceward dead ls --db {shop.file.path}"


def test_an_environment_that_disables_agents_is_told(
    cli: Cli, shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file itself is not paused."""
    shop.close()
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")

    ran = cli("doctor", "--json")

    assert ("warning", "ok") == (level(ran, "disabled"), level(ran, "paused"))


def found(cli: Cli, name: str, check: str) -> str:
    """Return what the only finding of one check says of an agent's file."""
    told = cli("doctor", f"{name}.db", "--json").json["findings"]
    [finding] = [each for each in told if each["check"] == check]
    assert "ok" == finding["level"]
    return str(finding["found"])


@pytest.mark.parametrize(("value", "level"), [(1, "ok"), ("one", "serious")])
def test_it_finds_a_value_of_the_wrong_type(
    shop: Postbox, cli: Cli, value: object, level: str
) -> None:
    """It looks for one without an error before, and names its column."""
    path = shop.file.path
    shop.close()
    put(path, "_onceward_file_info", "opened", value)

    [found] = [
        each for each in cli("doctor", path, "--json").json["findings"] if each["check"] == "values"
    ]

    assert (level, level == "serious") == (
        found["level"],
        "_onceward_file_info.opened" in found["found"],
    )
