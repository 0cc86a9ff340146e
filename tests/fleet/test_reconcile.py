"""A fleet is judged in this process, message by message, whatever was done to its files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fleet import generator
from tests.fleet.mishaps import BEFORE, NOW, handling, post
from tests.fleet.world import World

from onceward import Postbox
from onceward.fleet.export import export
from onceward.fleet.files import NamesNoFile
from onceward.fleet.loading import attached, reading_of, workspace
from onceward.fleet.manifest import OutputTaken
from onceward.fleet.opening import Unreadable
from onceward.fleet.replay import plan
from onceward.fleet.report import Report
from onceward.fleet.run import reconcile
from onceward.fleet.summary import LANE_MARKS
from onceward.fleet.verdicts import Rules
from onceward.message.names import DIRECTORY
from onceward.ops.cli import main

Made = Callable[..., Path]


def _query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as con:
        return con.execute(sql).fetchall()


@pytest.mark.broken("everything that can go wrong went wrong in these files")
@pytest.mark.parametrize("name", [*BEFORE, *NOW])
def test_each_mishap_is_found_as_what_it_is(name: str, tmp_path: Path) -> None:
    """Loss and forgetting are told apart: the counts are those of what was done."""
    made = generator.build(tmp_path / "agents", mishaps=[name])
    report = reconcile(made.folder, out=tmp_path / "out", rules=Rules(now=made.now))

    assert dict(made.verdicts) == dict(report.verdicts)
    assert made.quarantined + made.differing == report.unread
    assert (made.order, 0, made.gaps) == tuple(report.lane_totals[one] for one in LANE_MARKS)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[generator.Fleet, Path]]:
    """Return a fleet of size two with everything in it; no test changes it."""
    folder = tmp_path_factory.mktemp("fleet")
    yield generator.build(folder / "agents", size=2), folder / "out"
    shutil.rmtree(folder / "agents")  # its files break every rule


@pytest.fixture(scope="module")
def report(case: tuple[generator.Fleet, Path]) -> Report:
    """Return the reconciliation of the fleet."""
    made, out = case
    return reconcile(made.folder, out=out, rules=Rules(now=made.now))


def test_a_larger_fleet_is_judged_as_exactly(
    case: tuple[generator.Fleet, Path], report: Report
) -> None:
    """Counts are exact at any size, and no message is counted twice."""
    made, out = case
    rows = _query(out / "messages.db", "SELECT DISTINCT sender, recipient, id, file FROM messages")

    assert dict(made.verdicts) == dict(report.verdicts)
    assert made.frames == report.messages == len(rows)


def test_the_results_are_tables_of_one_sqlite_file(
    case: tuple[generator.Fleet, Path], report: Report
) -> None:
    """Sums stand beside the messages that they count; the page needs nothing from elsewhere."""
    made, out = case
    file = out / "messages.db"

    assert [(made.frames,)] == _query(file, "SELECT sum(messages) FROM pairs")
    assert [(report.verdicts["lost"],)] == _query(file, "SELECT sum(lost) FROM pairs")
    assert [(report.verdicts["lost"],)] == _query(
        file, "SELECT count(*) FROM findings WHERE verdict = 'lost'"
    )
    assert ["manifest.json", "messages.db", "report.html"] == sorted(
        path.name for path in out.iterdir() if not path.name.startswith(".")
    )
    told = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert {str(path) for path in made.folder.rglob("*.db") if path.name != DIRECTORY} == {
        one["path"] for one in told["files"]
    }


@pytest.mark.broken("its pages were overwritten")
def test_a_file_that_breaks_half_way_adds_nothing(box: Made, tmp_path: Path) -> None:
    """Rows before the damage do not count: the file is unreadable, and the fleet incomplete."""
    path = box("alice", 3000)
    with Postbox(path, start=False, hold_unknown=True):
        pass
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\x5a" * (size // 4))
    found = reconcile(path, out=tmp_path / "out")

    assert (0, 1, {}) == (found.files, found.unread, dict(found.verdicts))
    assert (False, True) == (found.complete, found.failed("loss"))
    assert "corrupt" == found.quarantine[0]["reason"]


def test_failfast_names_the_file(box: Made, tmp_path: Path) -> None:
    """A job that cannot do without a file says which one it was, and writes no results."""
    box("alice", 1)
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)

    with pytest.raises(Unreadable, match=r"notes\.db: corrupt"):
        reconcile(tmp_path, out=tmp_path / "out", failfast=True)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_folder_with_other_files_is_left_alone(box: Made, tmp_path: Path) -> None:
    """Results never go among files that no job of ours wrote."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.txt").write_text("ten years of work", encoding="utf-8")

    with pytest.raises(OutputTaken):
        reconcile(box("alice", 1), out=tmp_path / "thesis")


def test_messages_to_oneself_that_were_pruned_are_no_loss(tmp_path: Path) -> None:
    """An agent's own messages have a horizon, too."""
    with World(tmp_path / "agents") as world:
        near = world.open("echo")
        for number in range(3):
            near.send("echo", {"number": number}, type="step")
            world.run(near)
            for message in [near.receive()]:
                assert message is not None
                message.ack()
        world.run(near)
        world.clock.advance(8 * 86_400)
        with near.begin() as tx:  # maintenance was killed when it had pruned the inbox's side
            tx.execute("CREATE TABLE kept AS SELECT * FROM _onceward_outbox")
        near.file.run_maintenance()
        now = world.clock.now()
        with near.begin() as tx:
            columns = "SELECT group_concat(name) FROM pragma_table_info('_onceward_outbox')"
            [(stored,)] = tx.execute(columns)
            tx.execute(f"INSERT INTO _onceward_outbox ({stored}) SELECT {stored} FROM kept")
        world.rest()
    found = reconcile(tmp_path / "agents", out=tmp_path / "out", rules=Rules(now=now))

    assert {"forgotten": 3} == dict(found.verdicts)


def test_what_a_channel_no_longer_keeps_is_no_orphan(tmp_path: Path) -> None:
    """A bounded history is pruned by number, not by age; the sender's file says so."""
    with World(tmp_path / "agents") as world:
        near, far = world.open("near"), world.open(handling("far"))
        channel = near.channels.create("talk", "group", retain_count=1, bound_history=True)
        far.channels.get("talk").join()
        for number in range(4):
            channel.send({"number": number}, type="step")
            world.run(near, far)
            world.clock.advance(1)
        near.file.run_maintenance()
        world.clock.advance(3600)
        now = world.clock.now()
    found = reconcile(tmp_path / "agents", out=tmp_path / "out", rules=Rules(now=now))

    assert {"delivered_once": 1, "forgotten": 3} == dict(found.verdicts)


def test_the_command_needs_no_java_and_fails_for_what_it_could_not_read(
    box: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unreadable files are in the table and the exit code, unless only loss is asked for."""
    box("alice", 1)
    words = ["fleet", "reconcile", str(tmp_path), "--out", str(tmp_path / "out")]
    assert 0 == main(words)
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)
    capsys.readouterr()

    assert [1, 1, 0] == [
        main(words),
        main([*words, "--fail-on", "open"]),
        main([*words, "--fail-on", "loss"]),
    ]
    assert "unreadable" in capsys.readouterr().out


def test_without_a_folder_the_command_prints_the_verdicts(
    mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--out is for what is kept: verdict and exit code come without it, and no file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert 0 == main(["fleet", "reconcile", str(mail), "--grace", "0s", "--json"])
    said = json.loads(capsys.readouterr().out)

    assert ({"delivered_once": 3, "dead_lettered": 1, "in_flight": 1}, None) == (
        said["verdicts"],
        said["report"],
    )
    assert [] == list(tmp_path.iterdir())
    assert dict(reconcile(mail, rules=Rules.at_present(grace=0)).verdicts) == said["verdicts"]
    assert 2 == main(["fleet", "reconcile", str(mail), "--resume"])


def test_the_command_misses_a_file_until_it_is_retired(
    box: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and a line with the cure; 2 where nothing is known of earlier nights."""
    box("alice"), box("bob")
    fleet = ["fleet", "reconcile", f"{tmp_path}/*.db", "--out", str(tmp_path / "out")]
    state = ["--state", str(tmp_path / "nights.state")]
    assert 0 == main([*fleet, *state])
    (tmp_path / "bob.db").unlink()
    capsys.readouterr()

    assert 1 == main([*fleet, *state, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert ["gone"] == [row["reason"] for row in said["quarantine"]]
    assert [0, 0] == [main([*fleet, *state, "--retired", "bob"]), main([*fleet, *state])]
    assert 2 == main([*fleet, "--retired", "bob"])


def _put_aside(world: World) -> Path:
    """Let a recipient lose three messages by a restore; its broken file lies aside in ``old``."""
    _fared_well(world, 2)
    backup = world.keep("far", "../kept")
    _fared_well(world, 3)
    old = world.path("far", "old")
    old.parent.mkdir()
    world.path("far").rename(old)
    world.restore("far", backup)
    world.clock.advance(1)
    world.open("far")
    world.rest()
    return old


def _fared_well(world: World, count: int) -> None:
    near, far = world.open("near"), world.open(handling("far"))
    post(near, "far", count)
    world.run(near, far)
    world.clock.advance(1)
    world.rest()


@pytest.mark.broken("the recipient's file was restored")
def test_a_file_that_was_put_aside_hides_no_loss(tmp_path: Path) -> None:
    """Its restored copy goes on: what that one lacks is lost, and the file aside is named."""
    with World(tmp_path / "agents") as world:
        old = _put_aside(world)
        rules = Rules(now=world.clock.now() + 3_600_000)
        with_it = reconcile(world.folder, out=tmp_path / "1", rules=rules)
        old.unlink()
        without = reconcile(world.folder, out=tmp_path / "2", rules=rules)

    assert {"delivered_once": 2, "lost": 3} == dict(with_it.verdicts) == dict(without.verdicts)
    [row] = with_it.quarantine
    assert (str(old), "differs") == (row["path"], row["reason"])
    assert str(world.path("far")) in row["detail"]
    assert (False, True) == (with_it.complete, without.complete)


@pytest.mark.broken("the recipient's file was restored")
def test_what_took_effect_in_both_copies_is_done_twice(tmp_path: Path) -> None:
    """The sender sends again what the restored file lacks; the file aside has the first effect."""
    with World(tmp_path / "agents") as world:
        _put_aside(world)
        _fared_well(world, 1)
        rules = Rules(now=world.clock.now() + 3_600_000)
        found = reconcile(world.folder, out=tmp_path / "1", rules=rules)

    assert {"delivered_once": 4, "double_processed": 3} == dict(found.verdicts)


def test_where_nothing_could_be_read_nothing_is_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fleet of unreadable files is not a success, whatever is asked of it."""
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)
    words = ["fleet", "reconcile", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]

    assert 1 == main([*words, "--fail-on", "loss"])
    said = json.loads(capsys.readouterr().out)
    assert (False, 0) == (said["complete"], said["messages"])


@pytest.mark.broken("everything that can go wrong went wrong in these files")
def test_the_demo_finds_all_that_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command shows all, without Spark."""
    assert 0 == main(["fleet", "demo", "--home", str(tmp_path / "home"), "--json"])
    assert json.loads(capsys.readouterr().out)["ok"]


def test_horizons_are_of_the_moment_of_the_evidence(tmp_path: Path) -> None:
    """A file that is pruned while it is read says so: its messages are not called lost."""
    with World(tmp_path / "agents") as world:
        near, far = world.open("near"), world.open(handling("far"))
        post(near, "far", 3)
        world.run(near, far)
        world.clock.advance(8 * 86_400)
        now = world.clock.now()

        def prune(step: str) -> None:
            if step.startswith("reading"):
                far.file.run_maintenance()

        report = reconcile(
            tmp_path / "agents", out=tmp_path / "out", rules=Rules(now=now), on_step=prune
        )
        with closing(workspace(tmp_path / "w.db")) as con, attached(con, str(far.file.path)):
            before = reading_of(con, str(far.file.path))
            post(near, "far", 1)
            world.run(near, far)
            world.clock.advance(8 * 86_400)
            far.file.run_maintenance()

            assert before == reading_of(con, str(far.file.path))
    assert {"forgotten": 3} == dict(report.verdicts)


def test_no_file_is_no_success(tmp_path: Path) -> None:
    """A report on no file at all proves nothing, for a caller of the function, too."""
    report = reconcile(out=tmp_path / "out")

    assert (False, True, 0) == (report.complete, report.failed("loss"), report.broken)


@pytest.mark.parametrize("wrong", ["nowhere", "empty", "*.sqlite"])
@pytest.mark.parametrize("job", [reconcile, export, plan])
def test_a_path_that_names_no_file_is_refused(
    job: Callable[..., object], wrong: str, box: Made, tmp_path: Path
) -> None:
    """Also beside paths that name files, before anything is written."""
    live = box()
    (tmp_path / "empty").mkdir()

    with pytest.raises(NamesNoFile, match=wrong.replace("*", r"\*")):
        job(live, tmp_path / wrong, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [[], ["--state", "nights.state"]])
def test_a_shell_expands_the_files_of_a_home(
    more: list[str], box: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory among them is left out; any other file that is not an agent's fails the run."""
    monkeypatch.chdir(tmp_path)
    box("alice", 1)
    files = sorted(path.name for path in tmp_path.glob("*.db"))
    assert DIRECTORY in files
    words = ["fleet", "reconcile", "--out", "out", *more]
    assert 0 == main([*words, *files])
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)

    assert 1 == main([*words, *files, "notes.db"])
    assert 3 == main([*words, DIRECTORY])
