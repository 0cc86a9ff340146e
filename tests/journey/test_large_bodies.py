"""Bodies in files of the home: transparent to handlers, kept as long as a message needs them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Context, Msg, Postbox, Run
from onceward.errors import BodyLost, Conflict, DiskFull, StoreFault, TooLarge
from onceward.file import file_checks
from onceward.fleet import reconcile
from onceward.message.frame import Frame

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

LARGE = 10_000
FROM = {"large_body": 5000, "max_body": 6000}
REFERENCES = "SELECT frame ->> '$.dataref' FROM onceward_outbox ORDER BY seq"


class Scan(Msg, type="scan"):
    """A body of any size."""

    text: str


class Reader:
    """An agent that keeps what it is sent, and answers with as much."""

    def __init__(self, name: str = "reader") -> None:
        self.got: list[Any] = []
        self.agent = Agent(name)
        self.agent.on(Scan)(self.scan)
        self.agent.on(bytes)(self.got.append)

    def scan(self, scan: Scan) -> Scan:
        """Return the same text twice."""
        self.got.append(scan.text)
        return Scan(text=2 * scan.text)


def bodies(world: World) -> list[Path]:
    """Return the files of bodies, by name."""
    return sorted(each for each in (world.home / "bodies").rglob("*") if each.is_file())


def opened(world: World, reader: Reader) -> tuple[Postbox, Postbox]:
    """Open a sender and a reader, side by side."""
    return world.open("shop", **FROM), world.open(reader.agent, **FROM)


@pytest.mark.parametrize("body", [Scan(text="é" * LARGE), b"\0\xff" * LARGE])
def test_a_large_body_is_a_file_until_its_handler_gets_it(world: World, body: Any) -> None:
    """The rows of both agents refer to it by its digest; a small body stays in its message."""
    reader = Reader()
    shop, box = opened(world, reader)

    sent = shop.send("reader", body)
    shop.send("reader", Scan(text="small"))
    world.settle()

    assert [body.text if isinstance(body, Scan) else body, "small"] == reader.got
    [(reference,), (none,)] = shop.query(REFERENCES)
    [path] = bodies(world)
    assert (f"{sent}.{reference.removeprefix('ni:///sha-256;')}", None) == (path.name, none)
    assert "acked" == shop.state(sent)
    [longest] = box.query("SELECT max(length(frame)) FROM onceward_inbox")
    assert longest[0] < 1000


def test_replies_requests_and_messages_to_many_have_files_too(world: World) -> None:
    """Each copy has a file of its own, which its recipient reads."""
    reader, other = Reader(), Reader("other")
    shop, _ = opened(world, reader)
    world.open(other.agent, **FROM)

    ticket = shop.request("reader", Scan(text="x" * LARGE))
    world.settle()
    assert Scan(text="x" * 2 * LARGE) == shop.result(ticket, reply=Scan)
    shop.broadcast(Scan(text="y" * LARGE))
    world.settle()

    assert ["x" * LARGE, "y" * LARGE] == reader.got
    assert ["y" * LARGE] == other.got
    assert {"other": 1, "reader": 2, "shop": 1} == {
        name: len(list((world.home / "bodies").glob(f"*/{name}/*")))
        for name in ("other", "reader", "shop")
    }


def test_a_program_that_receives_by_hand_gets_the_body(world: World) -> None:
    """And so does the program that looks at a sent message."""
    shop, box = world.open("shop", **FROM), world.open("reader")
    sent = shop.send("reader", "x" * LARGE)
    world.settle()

    with box.receive() as message:  # type: ignore[union-attr]  # it is there
        assert "x" * LARGE == message.body
    assert [(sent, "x" * LARGE)] == [(each.id, each.body) for each in shop.history().messages]


def test_a_run_gets_the_body(world: World) -> None:
    """As one of the messages of its session."""
    got, agent = list[str](), Agent("reader")

    @agent.runs("talk", mode="followup", debounce=0)
    def work(run: Run) -> None:
        got.extend(each.body for each in run.messages)

    shop, _ = world.open("shop", **FROM), world.open(agent)
    shop.session("talk").send("reader", "x" * LARGE)
    world.settle()

    assert ["x" * LARGE] == got


def test_a_handler_that_waits_for_a_large_message_gets_it(world: World) -> None:
    """The message is kept with its reference, and read when the handler takes it."""
    got, agent = list[str](), Agent("reader")
    agent.waits(Scan)

    @agent.on("start")
    def start(_: Any, ctx: Context) -> None:
        got.append(ctx.wait(Scan).text)

    shop, _ = world.open("shop", **FROM), world.open(agent)
    shop.send("reader", None, type="start")
    world.settle()
    shop.send("reader", Scan(text="x" * LARGE))
    world.settle()

    assert ["x" * LARGE] == got


def test_a_body_lives_as_long_as_a_row_of_its_message(world: World) -> None:
    """Not a round of maintenance less: pruned rows free it, a dead letter keeps it."""
    world.audited = False  # rows that were counted are pruned
    reader, strict = Reader(), Agent("strict")

    @strict.on(Scan, attempts=1)
    def refuse(scan: Scan) -> None:
        raise ValueError(scan.text[:3])

    shop, box = opened(world, reader)
    other = world.open(strict)
    shop.send("reader", Scan(text="x" * LARGE))
    dead = shop.send("strict", Scan(text="y" * LARGE))
    world.settle()

    for days, left in ((6, 2), (2, 1), (30, 1)):
        world.wait(timedelta(days=days).total_seconds())
        for each in (box, other, shop, box, other):
            each.file.run_maintenance()
        assert left == len(bodies(world))

    other.dead_letters.discard(dead)
    world.wait(2 * 3600)
    shop.file.run_maintenance()
    assert [] == bodies(world)


def test_a_body_outlives_its_sender_s_row_while_its_recipient_has_the_message(world: World) -> None:
    """As where a receipt ends a message at its sender before it is handled."""
    world.audited = False  # rows that were counted are pruned
    shop = world.open("shop", ack="stored", retention=60, delivery_attempts=1, **FROM)
    box = world.open("reader")
    shop.send("reader", "x" * LARGE)
    world.settle()
    world.wait(timedelta(days=30).total_seconds())
    shop.file.run_maintenance()

    assert [] == shop.query(REFERENCES)
    message = box.receive()
    assert message is not None
    assert "x" * LARGE == message.body
    message.ack()


def test_the_file_of_a_message_that_was_never_committed_is_removed(world: World) -> None:
    """After a day, drafts too; the body of a message that waits stays."""
    shop = world.open("shop", **FROM)
    world.open("reader")
    with pytest.raises(ZeroDivisionError), shop.begin() as tx:
        tx.send("reader", "x" * LARGE)
        raise ZeroDivisionError
    [orphan] = bodies(world)
    draft = orphan.parent.parent / ".drafts" / "0"
    draft.write_bytes(b"x")
    os.utime(draft, 2 * (world.clock.now() / 1000,))
    shop.send("reader", "y" * LARGE, delay=timedelta(days=300))

    shop.file.run_maintenance()
    assert 3 == len(bodies(world))
    world.wait(timedelta(days=200).total_seconds())
    shop.file.run_maintenance()

    [left] = bodies(world)
    assert (False, False) == (left == orphan, draft.exists())


@pytest.mark.parametrize(("away", "left"), [("damaged", 1), ("missing", 1), ("gone", 0)])
def test_bodies_stay_while_their_recipient_may_come_back(
    world: World, away: str, left: int
) -> None:
    """A file that cannot be read now may have the messages later; that of a removed agent not."""
    reader = Reader()
    shop, box = opened(world, reader)
    shop.send("reader", Scan(text="x" * LARGE))
    world.settle()
    if away == "gone":
        box.agents.remove()
    world.shut()
    path, kept = world.path("reader"), world.home / "kept"
    path.rename(kept)
    if away == "damaged":
        path.write_bytes(b"no database" * 1000)
    shop = world.open("shop", **FROM)

    world.wait(timedelta(days=30).total_seconds())
    shop.file.run_maintenance()
    found = len(list((world.home / "bodies" / "shop").glob("reader/*")))
    world.shut()
    kept.rename(path)

    assert left == found


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_lost_body_is_a_dead_letter_until_it_is_restored(world: World, damage: str) -> None:
    """Its error names the file; with the file back, a replay hands the message over."""
    reader = Reader()
    shop, box = opened(world, reader)
    sent = shop.send("reader", Scan(text="x" * LARGE))
    [path] = bodies(world)
    whole = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(b"y" + whole[1:])
    world.settle()

    [letter] = box.dead_letters.list()
    assert ("corrupt", True) == (letter.reason, path.name in str(letter.last_error))
    path.write_bytes(whole)
    box.dead_letters.replay(sent)
    world.settle()
    assert ["x" * LARGE] == reader.got


def test_a_body_that_cannot_be_read_now_is_tried_again(world: World) -> None:
    """An error of the disk is no end of a message."""
    reader = Reader()
    shop, box = opened(world, reader)
    shop.send("reader", Scan(text="x" * LARGE))
    [path] = bodies(world)
    away = path.rename(world.home / "away")
    path.mkdir()  # reading it fails, and does not say that there is nothing
    world.settle()
    assert ([], []) == (reader.got, box.dead_letters.list())

    path.rmdir()
    away.rename(path)
    world.wait(60)
    world.settle()
    assert ["x" * LARGE] == reader.got


def test_messages_to_other_machines_carry_their_bodies(world: World) -> None:
    """Up to max_body: a larger one is refused when it is sent, with the setting to change."""
    reader = Reader()
    shop, _ = opened(world, reader)
    shop.peers.add("reader", "wire:reader")

    shop.send("reader", Scan(text="x" * 5500))
    with pytest.raises(TooLarge, match=r"max_body 6000, .* reader is not beside this one; raise"):
        shop.send("reader", Scan(text="x" * LARGE))
    world.settle()

    assert (["x" * 5500], []) == (reader.got, bodies(world))


def test_a_body_over_the_largest_size_is_refused(world: World) -> None:
    """For one recipient and for many, before anything is written."""
    shop = world.open("shop", max_large_body=LARGE, **FROM)
    world.open("reader")
    with pytest.raises(TooLarge, match="max_large_body 10000"):
        shop.send("reader", "x" * 20_000)
    with pytest.raises(TooLarge, match="max_large_body 10000"):
        shop.broadcast("x" * 20_000)

    assert ([], []) == (bodies(world), shop.query(REFERENCES))


def test_a_key_means_one_large_body(world: World) -> None:
    """The digest stands for the body: the same one is known, another is a conflict."""
    shop, _ = opened(world, Reader())

    first = shop.send("reader", Scan(text="x" * LARGE), key="k")
    assert first == shop.send("reader", Scan(text="x" * LARGE), key="k")
    with pytest.raises(Conflict, match="another body"):
        shop.send("reader", Scan(text="y" * LARGE), key="k")


def test_the_bodies_of_one_id_do_not_replace_each_other(world: World) -> None:
    """A refused message with a known id leaves the file of the first one as it is."""
    reader = Reader()
    shop, _ = opened(world, reader)

    shop.send("reader", Scan(text="x" * LARGE), message_id="one")
    with pytest.raises(Conflict):
        shop.send("reader", Scan(text="y" * LARGE), message_id="one")
    world.settle()

    assert ["x" * LARGE] == reader.got


def test_a_dead_letter_is_sent_as_new_with_its_body(world: World) -> None:
    """The new message has a file of its own."""
    reader = Reader()
    shop, _ = opened(world, reader)
    old = shop.send("reader", Scan(text="x" * LARGE), ttl=5)
    world.wait(6)
    world.settle()

    shop.dead_letters.replay(old, as_new=True)
    world.settle()

    assert ["x" * LARGE] == reader.got


def test_an_edited_body_takes_the_place_of_the_file(world: World) -> None:
    """The handler gets what was written in the edit."""
    reader = Reader()
    shop, box = opened(world, reader)
    sent = shop.send("reader", Scan(text="x" * LARGE))
    [path] = bodies(world)
    path.unlink()
    world.settle()

    box.dead_letters.edit(sent, {"text": "short"})
    box.dead_letters.replay(sent)
    world.settle()

    assert ["short"] == reader.got


def test_a_handler_that_is_called_again_on_purpose_sends_its_body_again(world: World) -> None:
    """Its message has a new id then, and a file under it."""
    reader, worker, calls = Reader(), Agent("shop"), list[int]()

    @worker.on("go", attempts=1)
    def go(_: Any, ctx: Context) -> None:
        ctx.step(lambda: ctx.tx.send("reader", Scan(text="x" * LARGE)), tx=True, name="send")
        calls.append(1)
        if len(calls) == 1:
            raise ValueError

    shop = world.open(worker, **FROM)
    world.open(reader.agent)
    sent = shop.send("shop", None, type="go")
    world.settle()
    for path in bodies(world):
        assert "x" * LARGE in path.read_text()
    shop.dead_letters.replay(sent, from_step="send")
    world.settle()

    assert (2, 2) == (len(calls), len(bodies(world)))
    assert 2 * ["x" * LARGE] == reader.got


def test_a_full_disk_is_reported_and_nothing_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a row nor a draft; another error of the disk is a StoreFault."""
    shop, _ = opened(world, Reader())
    for number, kind in ((28, DiskFull), (5, StoreFault)):

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(file_checks, "sync", fails)
        with pytest.raises(kind):
            shop.send("reader", Scan(text="x" * LARGE))

    assert ([], []) == (bodies(world), shop.query(REFERENCES))


def test_reports_of_the_fleet_know_a_message_by_its_row(world: World, tmp_path: Path) -> None:
    """Its verdict does not depend on the file of its body, and checks of the file find nothing."""
    reader = Reader()
    shop, box = opened(world, reader)
    shop.send("reader", Scan(text="x" * LARGE))
    world.settle()
    found = [shop.file.check(), box.file.check()]
    report = reconcile(world.home, out=tmp_path / "report")

    assert [[], []] == found
    assert {"delivered_once": 1} == {k: n for k, n in report.verdicts.items() if n}


@pytest.mark.parametrize("part", ["source", "recipient", "id", "dataref"])
def test_a_name_in_a_reference_is_no_path(world: World, part: str) -> None:
    """A frame from outside cannot make its reader open another file."""
    shop = world.open("shop", **FROM)
    world.open("reader")
    shop.send("reader", "x" * LARGE)
    [(text,)] = shop.query("SELECT frame FROM onceward_outbox")
    frame = Frame.parse(text)
    assert "x" * LARGE == frame.with_stored_body().data
    named = {"source": "urn:onceward:..", "dataref": "ni:///sha-256;../x"}

    with pytest.raises(BodyLost, match="which is not in a home"):
        frame.model_copy(update={part: named.get(part, "../x")}).with_stored_body()


def test_a_reference_of_another_program_is_left_to_it(world: World) -> None:
    """Its message has no body, or the one that it carries besides."""
    box = world.open("reader")
    sent = Frame(id="1", source="urn:onceward:a", type="t", recipient="reader", dataref="s3://b/1")

    both = sent, sent.model_copy(update={"data": 5})
    assert [None, 5] == [each.with_stored_body().data for each in both]
    assert None is box.receive()
