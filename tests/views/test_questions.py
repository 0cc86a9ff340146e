"""Each question of the catalogue, asked once of files whose content is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.inspector.homes import lively

from onceward import Agent, Context, Postbox, Run
from onceward.errors import InvalidArgument, ReadOnlyStore, StoreUnusable
from onceward.file.read_only import FileReader, opened, opened_any
from onceward.ops.views import conversation, listing, lists, messages, overview, rates, waiting
from onceward.ops.views.listing import Conditions
from onceward.ops.views.session import session_events
from onceward.testing import Controls, ManualClock

Open = Callable[[str], FileReader]
MINUTE = 60_000


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], int]:
    """Make the lively home once; return its folder, ids of messages, and the last moment."""
    home, clock = tmp_path_factory.mktemp("views") / "home", ManualClock()
    ids = lively(home, clock)
    return home, ids, clock.now()


@pytest.fixture
def readers(known: tuple[Path, dict[str, str], int]) -> Iterator[dict[str, FileReader]]:
    """Return a reader of each agent's file."""
    home, _, _ = known
    with (
        opened(home / "shop.db") as shop,
        opened(home / "billing.db") as billing,
        opened(home / "coder.db") as coder,
        opened(home / "mailer.db") as mailer,
    ):
        yield {"shop": shop, "billing": billing, "coder": coder, "mailer": mailer}


@pytest.fixture
def ids(known: tuple[Path, dict[str, str], int]) -> dict[str, str]:
    """Return the ids of some messages."""
    return known[1]


@pytest.fixture
def now(known: tuple[Path, dict[str, str], int]) -> int:
    """Return the moment at which the home was finished."""
    return known[2]


def test_an_overview_has_the_numbers_of_a_file(readers: dict[str, FileReader]) -> None:
    """What waits, what fails and what is in trouble, the worst word first."""
    shop, billing = (overview.overview(readers[name]) for name in ("shop", "billing"))

    assert ("shop", "safe", None) == (shop.file.agent, shop.file.durability, shop.file.paused_at)
    assert (13, 0, 2) == (shop.outgoing, shop.incoming, shop.dead_letters)
    assert (1, 1, 1) == (shop.breakers_open, shop.peers_failing, shop.schedules_failing)
    assert ("breaker open", "dead letters", "schedule failing") == shop.trouble
    assert ["warehouse"] == [peer for peer, _ in shop.outbox]
    assert (shop.outbox_oldest_at, None) == (shop.oldest_at, shop.inbox_oldest_at)
    assert (0, 26, 3) == (billing.outgoing, billing.incoming, billing.dead_letters)
    assert (0, 1, 1, None) == (
        billing.lanes.leased,
        billing.lanes.waiting,
        billing.lanes.failing,
        billing.lanes.lease_ends_at,
    )
    assert (0, 0, 0) == (billing.runs_open, billing.calls_left, billing.run_queue)
    assert billing.inbox_oldest_at == billing.oldest_at


def test_dead_letters_are_grouped_and_listed(readers: dict[str, FileReader]) -> None:
    """By reason and type, and each one, newest first."""
    [group] = overview.dead_groups(readers["billing"])
    named = dict.fromkeys(("origin", "session", "type", "peer", "before"))
    dead = listing.dead_letters(readers["billing"], reason="rejected", **named)

    assert ("rejected", "invoice.created", 3) == (group.reason, group.type, group.count)
    assert group.newest_at == dead[0].dead_at
    assert [3, 2, 1] == [each.seq for each in dead]
    assert {("inbox", "shop", "dead")} == {(each.origin, each.sender, each.state) for each in dead}
    assert () == listing.dead_letters(readers["billing"], reason="expired", **named)


def test_lanes_are_listed_by_name_and_by_trouble(readers: dict[str, FileReader]) -> None:
    """All of a session, those that are held with their error, and those that are ready."""
    billing = readers["billing"]
    [lane] = lists.lanes(billing, state=None, peer="shop", session="refunds", limit=-1)
    [held] = lists.held_lanes(billing, 50)

    assert held == lane
    assert ("waiting", 4, "the bank answered 503 Service Unavailable") == (
        held.state,
        held.attempts,
        held.reason,
    )
    assert {f"order-{n}" for n in range(5)} == {
        lane.session for lane in lists.ready_lanes(billing, 50)
    }
    assert () == lists.lanes(billing, state="leased", peer=None, session=None, limit=-1)


def test_peers_are_listed_by_name_and_by_trouble(readers: dict[str, FileReader]) -> None:
    """A page begins behind a name."""
    shop = readers["shop"]
    names = ["billing", "coder", "mailer", "warehouse"]

    assert names == [peer.name for peer in lists.peers(shop)]
    assert names[2:3] == [peer.name for peer in lists.peers(shop, after="coder", limit=1)]
    [worst] = lists.worst_peers(shop, 1)
    assert ("warehouse", "open", 6, True) == (
        worst.name,
        worst.breaker,
        worst.failures,
        worst.failing,
    )


def test_runs_are_listed_and_shown(readers: dict[str, FileReader]) -> None:
    """Newest first, and one whole."""
    coder = readers["coder"]
    last, first = lists.runs(coder, limit=10)

    assert (("chat", "done", 1), 2, 1) == (
        (last.session, last.state, last.messages),
        last.seq,
        first.seq,
    )
    assert (first,) == lists.runs(coder, before=last.seq, limit=10)
    assert () == lists.runs(coder, state="open", session="chat", limit=10)
    found, content = lists.run(coder, first.id)
    assert (first, '"did build it"') == (found, content.result)
    assert [first.id] == lists.run_ids(coder, first.id)


def test_schedules_readers_and_limits_are_listed(readers: dict[str, FileReader]) -> None:
    """With what is wrong with a schedule, how far a reader is, and how full a limit is."""
    shop, coder = readers["shop"], readers["coder"]
    told = [(each.name, each.failing, each.withdrawn) for each in lists.schedules(shop)]
    found = [
        (each.mailbox, each.mode, each.name, each.position)
        for each in lists.mailbox_readers(coder, 50)
    ]
    limit, *_ = lists.limits(shop, 50)

    assert [("nightly", False, False), ("stocktaking", True, False), ("weekly", False, False)] == (
        told
    )
    assert ["weekly"] == [each.name for each in lists.schedules(shop, after="stocktaking")]
    assert [("tickets", "cursor", "board", 3), ("tickets", "lease", "team", 3)] == found
    assert ("imports", 2, 2, 1.0) == (
        limit.used_by,
        limit.messages,
        limit.max_messages,
        limit.fullness,
    )


def test_a_message_is_told_whole(readers: dict[str, FileReader], ids: dict[str, str]) -> None:
    """Its rows in every box, its transitions, its body, and the start of its conversation."""
    sent = messages.message(readers["shop"], ids["order"])
    came = messages.message(readers["billing"], ids["order"])
    died = messages.message(readers["billing"], ids["rejected"])

    assert [["outbox"], ["inbox", "processed"], ["dead", "processed"]] == [
        [row.box for row in found.rows] for found in (sent, came, died)
    ]
    assert [(None, "pending"), ("pending", "sent"), ("sent", "acked")] == [
        (step.from_state, step.to_state) for step in sent.transitions
    ]
    assert (("order-77", "acked"), "rejected") == (
        (sent.any.key, sent.any.state) if isinstance(sent.any, messages.StoredMessage) else None,
        died.died_here and died.died_here.reason,
    )
    assert not messages.message(readers["coder"], ids["order"])


def test_frames_and_bodies_are_read(readers: dict[str, FileReader], ids: dict[str, str]) -> None:
    """Whole, in part, and their size; what is not there is nothing."""
    shop, billing = readers["shop"], readers["billing"]
    row = messages.message(shop, ids["order"]).any
    assert row is not None
    frame = messages.whole_frame(shop, "outbox", row.seq)

    assert (496, 496) == (messages.frame_size(shop, "outbox", row.seq), len(frame or b""))
    assert (None, 0, "") == (
        messages.whole_frame(shop, "dead", 99),
        messages.frame_size(shop, "dead", 99),
        messages.body_text(shop, "dead", 99),
    )
    assert messages.body_text(shop, "outbox", row.seq).startswith('{"id":77,')
    assert ("shop", '"id":77', 207) == (
        (part := messages.body_part(billing, ids["order"], first=2, most=7)) and part.sender,
        part and part.text,
        part and part.length,
    )
    assert messages.body_part(billing, "none", first=1, most=7) is None


def test_ids_are_found_by_their_beginning(
    readers: dict[str, FileReader], ids: dict[str, str]
) -> None:
    """In every box, and in the dedup records of what was pruned."""
    billing, order = readers["billing"], ids["order"]

    assert [order] == messages.message_ids(billing, order[:-2])
    assert [(order, "inbox")] == messages.ids(billing, order, 5)
    assert [ids["rejected"]] == messages.dead_ids(billing, ids["rejected"][:-2])
    assert 3 <= len(messages.message_ids(billing, "01"))
    assert [] == messages.message_ids(billing, "none")


def test_a_conversation_is_found_from_its_root(
    readers: dict[str, FileReader], ids: dict[str, str]
) -> None:
    """With what was sent, received, and handled in it."""
    [asked, entry, paid] = [
        *conversation.part(readers["shop"], ids["order"]).sent[:1],
        *conversation.part(readers["billing"], ids["order"]).sent,
    ]

    assert (ids["order"], None) == (asked.id, asked.cause)
    assert [("ledger.entry", ids["order"]), ("invoice.paid", ids["order"])] == [
        (each.type, each.cause) for each in (entry, paid)
    ]
    assert ids["order"] == messages.root_of(readers["billing"], paid.id)
    assert "none" == messages.root_of(readers["billing"], "none")


def test_transitions_are_followed(readers: dict[str, FileReader]) -> None:
    """Behind a number, so many at once."""
    shop = readers["shop"]
    last = messages.last_transition(shop)

    assert messages.records_transitions(shop)
    assert [last - 1, last] == [step.seq for step in messages.transitions_after(shop, last - 2, 10)]
    assert 3 == len(messages.transitions_after(shop, 0, 3))


def test_boxes_are_counted_and_listed(readers: dict[str, FileReader]) -> None:
    """By peer, session and state; newest first; and by conditions, page by page."""
    shop = readers["shop"]
    [count] = listing.queues(shop, state="pending", peer="billing", session=None, limit=-1)
    held, *_ = listing.latest(shop, "outbox", session="imports", limit=-1)
    wanted = Conditions(type="stock.wanted", text='"n":3')
    page = listing.listing(shop, "outbox", wanted, budget=60)

    assert ("outbox", "default", 1) == (count.box, count.session, count.messages)
    assert "held by limit:session:imports" == held.why
    assert 126 == len(listing.latest(shop, "outbox", limit=-1))
    assert (1, None) == (len(page.messages), page.next)
    before = listing.before(shop, "outbox", page.messages[0].at)
    assert before <= page.messages[0].seq
    assert {"dead"} == {
        each.box
        for each in listing.listing(shop, "dead", Conditions(state="dead"), budget=60).messages
    }


def test_rates_count_by_span(readers: dict[str, FileReader], now: int) -> None:
    """Messages sent, received and handled in each of the last spans."""
    found = rates.rates(readers["billing"], now, span=3 * MINUTE, count=3)

    assert ((8, 10, 0), (4, 9, 25), (4, 8, 0)) == (found.sent, found.received, found.handled)
    assert (found.received, 68) == (found.busiest, found.total)


def test_what_waits_is_told(readers: dict[str, FileReader], now: int) -> None:
    """To be pushed, to be handled, and to be read next."""
    shop, billing = readers["shop"], readers["billing"]
    [due] = waiting.due(shop, now)
    ready = waiting.unhandled(billing, now)
    one = waiting.next_message(billing, now, type="invoice.created", session="order-2")
    glimpses = waiting.waiting(billing, from_seq=0, session="refunds", most=4, limit=10)

    assert ("warehouse", 11) == (due.recipient, due.messages)
    assert (6, 0) == (ready.lanes, ready.leased)
    assert (1, True) == (one and one.attempt, one is not None and '"order-2"' in one.frame)
    assert waiting.next_message(billing, now, type="none", session=None) is None
    assert [("refund.wanted", '{"id', 9)] == [
        (each.type, each.text, each.length) for each in glimpses
    ]
    assert (70, [69, 70]) == (
        waiting.newest(billing),
        [each.seq for each in waiting.arrived(billing, 68)],
    )
    assert [("ledger", 21, 0), ("shop", 21, 27)] == [
        (each.peer, each.sent, each.received) for each in waiting.exchanged(billing, 40, 40)
    ]


def test_queues_drops_and_questions_are_told(tmp_path: Path) -> None:
    """Messages that wait for a run, that a policy dropped, and a handler that asked another."""
    clock, agent = ManualClock(), Agent("b")
    agent.runs("chat", mode="collect", debounce=60)(lambda _: None)

    @agent.on("ask")
    def ask(body: object, ctx: Context) -> str:
        return ctx.ask("a", "what", reply=str, type="question", timeout="1d")

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b,
    ):
        a.limits.set("session", "log", messages=1, overflow="drop_old")
        for session, kind in (("chat", "x"), ("work", "ask"), ("log", "x"), ("log", "x")):
            a.session(session).send("b", 1, type=kind)
        a.run_until_idle()
        b.run_until_idle()
        with opened(a.file.path) as here, opened(b.file.path) as there:
            [dropped] = lists.drops(here, 5)
            [asked] = waiting.questions(there, None, 5)
            [queue] = lists.session_queues(there)
            [queued] = lists.queued(there, "chat", 10)
            assert [queued.id] == lists.queued_ids(there, queued.id[:-2])
            none = waiting.questions(here, None, 5)

    assert ("session", "log", 1) == (dropped.scope, dropped.name, dropped.messages)
    assert ("a", 1, ()) == (asked.awaits, asked.lanes, none)
    assert ("chat", 1, 1, "a") == (queue.session, queue.waiting, queued.position, queued.sender)


def test_acknowledgments_are_told(tmp_path: Path) -> None:
    """How far each recipient has come with a message of a channel."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent="b", start=False) as b,
    ):
        a.channels.create("room", "group")
        b.channels.get("room").join()
        _settle(a, b)
        a.channels.get("room").send("x")
        _settle(a, b)
        copy = b.channels.get("room").receive()
        assert copy is not None
        b.channels.get("room").acknowledge(copy)
        _settle(a, b)
        with opened(a.file.path) as reader:
            told = messages.message(reader, copy.id).acknowledgments

    assert [("b", "completed")] == [(each.participant, each.status) for each in told]


def _settle(*boxes: Postbox) -> None:
    for box in boxes * 3:
        box.run_until_idle()


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT nothing FROM outbox", InvalidArgument),
        ("SELECT 1; SELECT 2", InvalidArgument),
        ("SELECT ?", InvalidArgument),
        ("DELETE FROM _onceward_outbox", ReadOnlyStore),
    ],
)
def test_a_typed_statement_is_one_that_reads(
    readers: dict[str, FileReader], sql: str, error: type[Exception]
) -> None:
    """Anything else is refused before it runs."""
    with pytest.raises(error):
        readers["shop"].typed(sql)


def test_a_typed_statement_knows_short_names(readers: dict[str, FileReader]) -> None:
    """Columns of one name are numbered."""
    assert [{"n": 126, "n:2": 1}] == readers["shop"].typed(
        "SELECT count(*) AS n, 1 AS n FROM outbox"
    )


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    """It can be opened as it is, but not asked."""
    path = tmp_path / "other.db"
    with pytest.raises(StoreUnusable, match="does not exist"), opened(path):
        pass
    path.touch()
    with opened_any(path) as reader:
        assert [(0,)] == reader.rows("PRAGMA user_version")
    with pytest.raises(StoreUnusable, match="not an agent's file"), opened(path):
        pass


def test_a_held_reader_sees_one_moment(tmp_path: Path) -> None:
    """What is committed meanwhile is not seen; without the hold it is, and is told."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box, opened(box.file.path) as reader:
        before = reader.commits()
        box.send("a", 1)
        seen = [reader.commits() != before, overview.stats(reader)["enqueued"]]
        reader.hold()
        overview.stats(reader)
        box.send("a", 2)
        seen.append(overview.stats(reader)["enqueued"])

    assert [True, 1, 1] == seen


def test_a_session_is_told_in_its_order(readers: dict[str, FileReader]) -> None:
    """Messages in, the runs that took them, and messages out, each with its state."""
    found = session_events(readers["coder"], "chat", 10)

    assert ["received", "received", "run", "run", "sent", "sent"] == [each.kind for each in found]
    assert sorted(each.at for each in found) == [each.at for each in found]
    assert ["done", "done"] == [each.state for each in found if each.kind == "run"]
    assert "1 message" == found[2].detail
    assert "shop" == found[0].peer


def test_the_steps_of_a_run_are_in_its_session(tmp_path: Path) -> None:
    """With their attempts and errors, after the run that called them."""
    agent = Agent("coder")

    @agent.runs("chat", mode="followup")
    def turn(run: Run) -> None:
        run.step(len, "four", name="measure")

    with Postbox(tmp_path / "coder.db", agent=agent, start=False) as box:
        box.session("chat").send("coder", "hello")
        box.run_until_idle()
    with opened(tmp_path / "coder.db") as reader:
        found = session_events(reader, "chat", 10)

    assert ["received", "sent", "run", "step"] == sorted(
        (each.kind for each in found), key=["received", "sent", "run", "step"].index
    )
    [step] = [each for each in found if each.kind == "step"]
    assert ("measure", "done", "") == (step.what, step.state, step.detail)


def test_each_message_of_a_run_tells_its_steps(tmp_path: Path) -> None:
    """Those of a later message, too, in the file's questions and in Python; with its output."""
    agent = Agent("coder")

    @agent.runs("chat", mode="collect", debounce=0)
    def turn(run: Run) -> None:
        run.step(len, "four", name="measure")
        run.stream().append(str(len(run.messages)))

    with Postbox(tmp_path / "coder.db", agent=agent, start=False) as box:
        sent = [box.session("chat").send("coder", {"n": n}) for n in range(2)]
        other = box.session("chat").send("coder", {"n": 2}, delay="1h")
        box.run_until_idle()
        told = [box.journey(each) for each in sent]
    with opened(tmp_path / "coder.db") as reader:
        found = [messages.message(reader, each) for each in (*sent, other)]

    assert [["measure"], ["measure"], []] == [[each.name for each in one.steps] for one in found]
    assert [1, 1, 0] == [sum(each.chunks for each in one.streams) for one in found]
    assert [("measure", 1)] * 2 == [
        (one.steps[0].name, one.streams[0].chunks) for one in told if one is not None
    ]
