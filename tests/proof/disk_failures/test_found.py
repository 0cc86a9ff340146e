"""What the sweep found once: each of these was a bug of ours."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from tests.proof.disk_failures.failing import FailingDisk, Fault
from tests.proof.power_cut.disk import Disk
from tests.ready_made import ReadyMade, copied

from onceward import Agent, Postbox
from onceward.errors import OncewardError, StoreFault
from onceward.testing import Controls, ManualClock


@pytest.fixture
def fault() -> Fault:
    """Return a disk's trouble, none as yet: set its kind and number."""
    return Fault()


@pytest.fixture
def disk(fault: Fault) -> Iterator[str]:
    """Return the name of a file system that suffers from it."""
    vfs = FailingDisk(Disk(), 1, fault)
    yield vfs.name
    fault.kind = ""
    vfs.unregister()


def next_one(fault: Fault, kind: str, *, sticky: bool = False) -> None:
    """Let the next operation of that kind fail."""
    fault.kind, fault.number, fault.sticky, fault.fired = kind, fault.seen[kind] + 1, sticky, False


@pytest.mark.parametrize("kind", ["read", "write", "sync"])
def test_a_checkpoint_that_fails_is_ours_to_tell(
    tmp_path: Path, fault: Fault, disk: str, kind: str
) -> None:
    """The janitor waits for errors of ours; a stranger's would end its thread for good."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(vfs=disk)) as box:
        box.send("a", 1)
        next_one(fault, kind, sticky=True)

        with pytest.raises(OncewardError):
            box.file.run_maintenance()
        fault.kind = ""
        box.send("a", 2)  # the write that opens the file again
        box.file.run_maintenance()


@pytest.mark.parametrize("kind", ["read", "write", "sync", "truncate"])
def test_closing_on_a_disk_that_fails(tmp_path: Path, fault: Fault, disk: str, kind: str) -> None:
    """Closing raises nothing and closes everything; what was committed is there afterwards."""
    box = Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(vfs=disk))
    mail = box.send("a", 1)
    next_one(fault, kind, sticky=True)
    box.close()
    fault.kind = ""

    assert [] == [
        con for con in apsw.connections() if (con.filename or "").startswith(str(tmp_path))
    ]
    with Postbox(tmp_path / "a.db", agent="a", start=False) as again:
        assert ("pending", []) == (again.state(mail), again.file.check())


def test_opening_through_any_read_error(tmp_path: Path, fault: Fault, disk: str) -> None:
    """
    Whichever read of an opening fails, the error is one of ours, nothing stays open.

    The next opening works.
    """
    path = tmp_path / "a.db"
    with Postbox(path, agent="a", start=False) as box:
        mail = box.send("a", 1)
    Postbox(path, agent="a", start=False, testing=Controls(vfs=disk)).close()
    sound, reads, fired = path.read_bytes(), fault.seen["read"], 0

    for number in range(1, reads + 1):
        path.write_bytes(sound)
        path.with_name("a.db-wal").unlink(missing_ok=True)
        fault.kind, fault.number, fault.fired = "read", number, False
        fault.seen.clear()
        with suppress(OncewardError):
            Postbox(path, agent="a", start=False, testing=Controls(vfs=disk)).close()
        assert [] == [con for con in apsw.connections() if con.filename == str(path)]
        fired += fault.fired
    fault.kind = ""

    assert fired > 10
    with Postbox(path, agent="a", start=False) as box:
        assert "pending" == box.state(mail)


def test_reading_inside_a_block_on_a_disk_that_fails(
    tmp_path: Path, fault: Fault, disk: str
) -> None:
    """A read that we make for a send in a block fails in our own words, and the block is undone."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(vfs=disk)) as box:
        box._db.write(lambda tx: tx.run("CREATE TABLE filler (x)"))
        box._db.write(
            lambda tx: tx.run(
                "INSERT INTO filler SELECT randomblob(100000) FROM json_each('[1,2,3]')"
            )
        )
        box._db.write(lambda tx: tx.run("PRAGMA shrink_memory"))
        with pytest.raises(StoreFault), box.begin():
            box._db.writer._store.writing_connection(0.0).execute("PRAGMA shrink_memory")
            next_one(fault, "read")
            box._db.read("SELECT sum(length(x)) FROM filler")


def test_mail_by_file_arrives_in_the_senders_time(tmp_path: Path) -> None:
    """A file opened to deliver into it uses the sender's clock unless its owner has one here."""
    clock = ManualClock()
    Postbox(tmp_path / "b.db", agent="b", start=False, testing=Controls(clock=clock)).close()
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as a:
        a.send("b", "hello")
        a.run_until_idle()
    with Postbox(tmp_path / "b.db", agent="b", start=False, testing=Controls(clock=clock)) as b:
        assert [clock.now()] == [past.at for past in b.history().messages]


@pytest.mark.parametrize("kind", ["read", "write", "sync"])
def test_mail_moves_again_once_the_disk_works(
    tmp_path: Path, fault: Fault, disk: str, kind: str, ready_made: ReadyMade
) -> None:
    """
    Wherever a disk began to fail, the engines do all that is due once it works.

    They wait for no lease of their own, and for no write of the application.
    """
    stuck, broken = list[int](), 0
    for number in range(1, 32):
        handled, clock = list[int](), ManualClock()
        agent = Agent(f"b{number}")
        agent.on("job")(handled.append)
        with (
            copied(ready_made),
            Postbox(
                tmp_path / f"b{number}.db",
                agent=agent,
                start=False,
                testing=Controls(vfs=disk, clock=clock),
            ) as b,
            Postbox(
                tmp_path / f"a{number}.db",
                agent=f"a{number}",
                start=False,
                testing=Controls(vfs=disk, clock=clock),
            ) as a,
        ):
            a.send(agent.name, number, type="job")
            fault.kind, fault.number, fault.sticky = kind, fault.seen[kind] + number, True
            fault.fired = False
            for box in (a, b, a):
                with suppress(OncewardError):
                    box.run_until_idle()
            broken += fault.fired
            fault.kind = ""
            clock.advance(2)  # the pause after a failed delivery
            for box in (a, b, a):
                box.run_until_idle()
            stuck += [number] * (not handled or a.file.stats()["acked"] != 1)

    assert broken > 5
    assert [] == stuck


def test_a_second_postbox_opens_a_closed_file_for_both(
    tmp_path: Path, fault: Fault, disk: str
) -> None:
    """A further opening in the process meets the trouble while it lasts, and ends it after."""
    path = tmp_path / "a.db"
    with Postbox(
        path, agent="a", start=False, testing=Controls(vfs=disk), hold_unknown=True
    ) as one:
        kept = one.send("b", 1)
        next_one(fault, "write", sticky=True)
        with pytest.raises(OncewardError):
            one.send("b", 2)
        with pytest.raises(OncewardError):
            Postbox(path, agent="a", start=False, testing=Controls(vfs=disk))
        fault.kind = ""
        with Postbox(path, agent="a", start=False, testing=Controls(vfs=disk)) as two:
            assert one._db is two._db
            assert kept in {past.id for past in two.history().messages}
        assert kept in {past.id for past in one.history().messages}
