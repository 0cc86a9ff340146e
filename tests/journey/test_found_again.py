"""
A restored file finds again what it had sent: its recipients tell it, with the outcomes.

No new message is needed, and nothing that is found again is sent a second time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Agent, Context, Drop, Postbox, Reject, Retry
from onceward.core.accept import lost
from onceward.core.send import internal
from onceward.core.send.add import add_if_possible
from onceward.errors import Conflict, ParcelTooLarge, RequestFailed
from onceward.message.settings import Settings
from onceward.message.vocabulary import FOUND, LOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World

    from onceward.message.parcel import Parcel

HOUR, DAY = 3_600.0, 86_400.0


def wired(world: World, ledger: Agent) -> Postbox:
    """Open a sender, of which a copy is kept, and a recipient; return the sender."""
    world.wired("shop", ledger)
    return kept(world, "shop")


def kept(world: World, name: str) -> Postbox:
    """Keep a copy of a file; return the file."""
    world.shut()
    world.keep_copy(name)
    world.reopen()
    return world.boxes[name]


def restored(world: World, name: str = "shop") -> Postbox:
    """Restore a file, and let it talk to its peers; return it."""
    world.shut()
    world.restore(name)
    world.reopen()
    world.settle()
    world.wait(HOUR)
    return world.boxes[name]


def asked_and_told(world: World) -> list[str]:
    """Return the kinds of questions and pages that were pushed."""
    frames = [carried.text for parcel in world.wire.pushed for carried in parcel.frames]
    return [kind for text in frames for kind in (LOST, FOUND) if f'"type":"{kind}"' in text]


def test_a_restored_file_knows_what_it_had_sent(world: World) -> None:
    """Messages of the application are found by id, by key, and in the history."""
    shop = wired(world, counting("ledger"))
    plain = shop.send("ledger", Job(n=1))
    keyed = shop.send("ledger", Job(n=2), key="k")
    world.settle()
    shop = restored(world)
    pushed = len(world.wire.pushed)

    assert ["acked", "acked"] == [shop.state(each) for each in (plain, keyed)]
    assert keyed == shop.send("ledger", Job(n=2), key="k")
    with pytest.raises(Conflict):
        shop.send("ledger", Job(n=3), key="k")
    world.settle()
    assert ([1, 2], pushed) == (effects(world, "ledger"), len(world.wire.pushed))
    sent = [each.id for each in shop.history().messages if each.type == "job"]
    assert [plain, keyed] == sorted(sent, key=[plain, keyed].index)


def test_what_the_file_knows_is_not_asked_for(world: World) -> None:
    """The recipient begins after the last message that had left before the copy."""
    world.wired("shop", counting("ledger"))
    world.boxes["shop"].send("ledger", Job(n=1))
    world.settle()
    kept(world, "shop")
    world.wire.pushed.clear()
    restored(world)

    assert [LOST] == asked_and_told(world)


@pytest.mark.parametrize(("page", "slice_"), [(2, 20_000), (200, 2)])
def test_much_is_found_in_pages(
    world: World, monkeypatch: pytest.MonkeyPatch, page: int, slice_: int
) -> None:
    """Each page is asked for once the one before is stored; other senders' messages are not in."""
    monkeypatch.setattr(lost, "PAGE", page)
    monkeypatch.setattr(lost, "SCANNED", slice_)
    other = world.open("other")
    other.peers.add("ledger", "wire:ledger")
    shop = wired(world, counting("ledger"))
    for n in range(7):
        shop.send("ledger", Job(n=n))
        world.boxes["other"].send("ledger", Job(n=10 + n))
        world.settle()
    shop = restored(world)

    found = shop.query("SELECT body FROM onceward_outbox WHERE type = 'job' AND state = 'acked'")
    assert [f'{{"n":{n}}}' for n in range(7)] == [body for (body,) in found]
    assert 3 < len(asked_and_told(world))


def test_a_page_is_bounded_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is larger than a page has one of its own, the others share pages."""
    monkeypatch.setattr(lost, "PAGE_BYTES", 8_000)
    shop = wired(world, Agent("ledger"))
    ids = [shop.send("ledger", "x" * size, type="text") for size in (900, 5_000, 300, 300, 900)]
    world.settle()
    shop = restored(world)

    assert ["sent"] * 5 == [shop.state(each) for each in ids]
    assert 3 == asked_and_told(world).count(FOUND)


def test_a_page_that_is_refused_does_not_end_the_search(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is larger than what the transport accepts; all others are found."""
    monkeypatch.setattr(lost, "PAGE_BYTES", 8_000)

    def refuse_large(parcel: Parcel) -> None:
        if parcel.sender == "ledger" and any(len(each.text) > 9_000 for each in parcel.frames):
            raise ParcelTooLarge("too large", limit=9_000)

    shop = wired(world, Agent("ledger"))
    ids = [shop.send("ledger", "x" * size, type="text") for size in (9, 9_999, 300, 5_000, 900)]
    world.settle()
    world.wire.on_push = refuse_large
    shop = restored(world)

    assert ["sent", "absent", "sent", "sent", "sent"] == [shop.state(each) for each in ids]
    [refused] = world.boxes["ledger"].dead_letters.list()
    assert "too_large" in refused.reason


def test_pages_fit_where_bodies_are_small(world: World) -> None:
    """Many messages with long reasons are found by a file whose largest body is small."""
    ledger = Agent("ledger")

    @ledger.on("text")
    def refuse(_: str) -> None:
        raise Reject("\1" * 900)

    world.wired("shop", ledger, max_body=8_000)
    shop = kept(world, "shop")
    ids = [shop.send("ledger", "x" * 100, type="text") for _ in range(30)]
    world.settle()
    shop = restored(world)

    assert ["failed"] * 30 == [shop.state(each) for each in ids]
    assert [] == world.boxes["ledger"].dead_letters.list(origin="outbox")


def test_what_is_a_dead_letter_here_stays_one(world: World) -> None:
    """A message that expired after the restore is not stored a second time, as sent."""
    shop, _ = world.wired("shop", counting("ledger"))
    sent = shop.send("ledger", Job(n=1), ttl=60)
    world.shut()
    world.keep_copy("shop")
    world.reopen()
    world.settle()
    world.shut()
    world.restore("shop")
    [shop] = world.reopen("shop")
    world.wait(HOUR)
    world.reopen()
    world.settle()
    world.wait(HOUR)
    shop = world.boxes["shop"]

    assert ([1], "dead") == (effects(world, "ledger"), shop.state(sent))
    assert [] == shop.file.check()


def test_what_no_message_can_carry_is_left_out(world: World) -> None:
    """A message of more than half of the largest body is not found again, the others are."""
    shop = wired(world, Agent("ledger"))
    half = Settings().max_body // 2
    bodies = ['"' * (half // 2 - 1_000), "x" * (half - 2_000), "x" * half, "x"]
    ids = [shop.send("ledger", body, type="text") for body in bodies]
    world.settle()
    shop = restored(world)

    assert ["sent", "sent", "absent", "sent"] == [shop.state(each) for each in ids]


def test_each_outcome_is_found(world: World) -> None:
    """A message that waits, was dropped or is a dead letter there has that state here."""
    ledger = Agent("ledger")
    errors = {"waits": Retry(after=DAY), "drops": Drop(), "dies": Reject("no")}

    @ledger.on("*")
    def work(_: object, ctx: Context) -> None:
        raise errors[ctx.message.type]

    shop = wired(world, ledger)
    ids = [shop.send("ledger", 1, type=each, ordering_key=each) for each in errors]
    world.settle()
    before = [shop.state(each) for each in ids]
    shop = restored(world)

    assert ["sent", "acked", "failed"] == before
    assert before == [shop.state(each) for each in ids]


def redone(world: World, work: Callable[[Job, Context], object], ledger: Agent) -> Postbox:
    """Handle a job, restore the file to before it, find what it sent, and handle the job again."""
    billing = Agent("billing")
    billing.on(Job)(work)
    world.wired(billing, ledger)
    world.open("shop").peers.add("billing", "wire:billing")
    world.boxes["billing"].peers.add("shop", "wire:shop")
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.restore("billing")
    world.reopen("billing", "ledger")
    world.settle()
    world.reopen()
    world.wait(HOUR)
    return world.boxes["billing"]


def test_what_a_handler_sends_again_replaces_what_was_found(world: World) -> None:
    """It has the same ids, and takes effect once."""

    def work(job: Job, ctx: Context) -> None:
        ctx.send("ledger", job)
        ctx.request("ledger", Job(n=2))
        with ctx.group(then="shop") as group:
            group.send("ledger", Job(n=3))

    billing = redone(world, work, counting("ledger"))

    assert [1, 2, 3] == effects(world, "ledger")
    sent = billing.query(
        "SELECT state, count(*) FROM onceward_outbox WHERE type = 'job' GROUP BY 1"
    )
    assert [("acked", 3)] == sent
    assert [0] == [each.open for each in billing.groups.list()]


@pytest.mark.broken("X4: the message of the second call has other contents")
def test_a_handler_that_sends_something_else_is_noticed(world: World) -> None:
    """The message that came first stays, and both files say so."""
    calls: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        ctx.send("ledger", Job(n=len(calls)))

    billing = redone(world, work, counting("ledger"))

    assert [1] == effects(world, "ledger")
    for box in (billing, world.boxes["ledger"]):
        assert [(1,)] == box.query("SELECT count(*) FROM onceward_differing_messages")


def test_a_request_that_got_no_reply_fails_again(world: World) -> None:
    """The request is made again under its key; its outcome ends the wait."""
    shop = wired(world, counting("ledger"))
    shop.request("ledger", Job(n=1), key="k")
    world.settle()
    shop = restored(world)
    asked = shop.request("ledger", Job(n=1), key="k")
    world.settle()

    with pytest.raises(RequestFailed):
        shop.result(asked, reply=Job)
    assert [1] == effects(world, "ledger")


def test_both_files_may_be_restored(world: World) -> None:
    """Each finds what the other one still has."""
    shop, ledger = world.wired("shop", counting("ledger"))
    ledger.send("shop", Job(n=5))
    world.settle()
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen()
    first = shop.send("ledger", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("ledger")
    shop, _ = world.reopen()
    second = shop.send("ledger", Job(n=2))
    world.settle()
    world.shut()
    world.restore("ledger")
    shop = restored(world)

    assert ("acked", "absent") == (shop.state(first), shop.state(second))


def test_a_page_that_was_not_asked_for_is_ignored(world: World) -> None:
    """A peer cannot put messages into the outbox of a file that was not restored."""
    shop, ledger = world.wired("shop", Agent("ledger"))
    sent = shop.send("ledger", Job(n=1))
    world.settle()
    [(frame,)] = ledger._db.read("SELECT frame FROM _onceward_inbox")
    forged = [frame.replace(sent, "other"), "processed", None]
    for n, said in enumerate(({"after": 1, "upto": 9, "sent": [forged]}, {"sent": 3}, None)):
        headers = lost._headers("ledger", "shop", FOUND, str(n))._replace(in_reply_to=sent)
        message = internal.compose(headers, said, ledger._db.now())
        ledger._db.write(partial(add_if_possible, message=message))
    world.settle()

    assert "absent" == shop.state("other")
    assert [FOUND] * 3 == asked_and_told(world)
