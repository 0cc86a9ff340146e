"""
Looking back: filters, pages and conversations.

Every filter agrees with a plain rule, pages miss and repeat nothing, conversations are whole
and in order.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncPostbox, Context, MessageRecord, Msg, Postbox
from onceward.errors import InvalidArgument
from onceward.features.history.history import NEVER
from onceward.features.history.time_index import LENGTH
from onceward.file.transaction import bump
from onceward.message.topics import matches
from onceward.testing import Controls

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World

BEGINNING = 1_767_225_600_000
"""The moment at which the world of a test begins."""


class Note(Msg, type="note"):
    """A message with a text."""

    text: str


WORDS = ("alpha", "beta 12", "größe", "x" * 50)
TOPICS = (None, "build.api", "build.api.failed", "deploy")


def busy(world: World, *, seed: int, messages: int = 60) -> Postbox:
    """Return a postbox that sent, received, buried and dropped a good deal."""
    rng = random.Random(seed)
    shop = world.open("shop", hold_unknown=True)
    others = [world.open(name, hold_unknown=True) for name in ("one", "two")]
    for box in others:
        box.peers.add("shop", "wire:shop")
        shop.peers.add(box.agent, f"wire:{box.agent}")
    for _ in range(messages):
        box = rng.choice([shop, shop, *others])
        to = rng.choice(["one", "two", "nobody"] if box is shop else ["shop"])
        session = box.session(rng.choice(("s", "t")))
        ttl = None if to == "nobody" else rng.choice((None, 1.0))
        body: Any = rng.choice((Note(text=rng.choice(WORDS)), rng.choice(WORDS), {"n": 1}, b"raw"))
        session.send(
            to,
            body,
            topic=rng.choice(TOPICS),
            priority=rng.choice(("normal", "urgent", "low")),
            ttl=ttl,
            correlation_id=rng.choice((None, "c1", "c2")),
            type=rng.choice((None, "other")),
        )
        world.clock.forward(rng.choice((0, 0.5)))
        if rng.random() < 0.3:
            world.settle()
        if rng.random() < 0.2 and (message := shop.receive()) is not None:
            rng.choice((message.ack, message.reject, message.drop))()
    shop._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_outbox SET kind = 'query', channel = 'main' WHERE seq % 3 = 0"
        )
    )
    shop._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_inbox SET kind = 'command', channel = 'main' WHERE seq % 4 = 0"
        )
    )
    return shop


def everything(box: Postbox) -> list[MessageRecord]:
    """Return all past messages, by the one call that has no filter."""
    return box.history(limit=NEVER).messages


def fits(past: MessageRecord, filters: dict[str, Any]) -> bool:
    """Judge one message by the plain rule."""
    body = past.body if not (past.text.find('"data_base64"') > 0) else None
    text = (
        None
        if body is None
        else body
        if isinstance(body, str)
        else past.text[past.text.find('"data":') + 7 : -1]
    )
    rules: dict[str, Callable[[Any], bool]] = {
        "topic": lambda v: past.topic is not None and matches(v, past.topic),
        "since": lambda v: past.at >= v,
        "until": lambda v: past.at < v,
        "kind": lambda v: past.kind in ([v] if isinstance(v, str) else v),
        "priority": lambda v: past.priority in ([v] if isinstance(v, str) else v),
        "content": lambda v: text is not None and v in text,
    }
    return all(
        rules[name](value) if name in rules else getattr(past, name) == value
        for name, value in filters.items()
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_filter_says_what_the_plain_rule_says(world: World, seed: int) -> None:
    """
    Up to three filters at once find, in order, exactly what a look at every message finds.

    They count it, too.
    """
    shop = busy(world, seed=seed)
    rng, every = random.Random(seed), everything(shop)
    values: dict[str, list[Any]] = {
        "session": ["s", "t", "none"],
        "sender": ["shop", "one", "none"],
        "recipient": ["shop", "one", "nobody"],
        "type": ["note", "other"],
        "topic": ["build.api", "build.#", "*", "build.*.failed"],
        "channel": ["main", "none"],
        "state": sorted({past.state for past in every}),
        "kind": ["query", ["query", "command"]],
        "priority": ["urgent", ["low", "normal"]],
        "correlation_id": ["c1", "c2"],
        "content": ["beta", "text", "größe"],
        "since": [past.at for past in every],
        "until": [past.at for past in every],
    }

    assert {"out", "in", "outbox"} <= {past.box for past in every}
    for _ in range(80):
        filters = {
            name: rng.choice(values[name])
            for name in rng.sample(sorted(values), rng.choice((1, 2, 3)))
        }
        wanted = [past for past in every if fits(past, filters)]
        page = shop.history(limit=NEVER, **filters)
        assert (wanted, len(wanted), False) == (page.messages, page.total_count, page.has_more), (
            filters
        )


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"session": "s"},
        {"sender": "one"},
        {"since": BEGINNING},
        {"channel": "main"},
        {"content": "a"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [True, False])
def test_pages_miss_and_repeat_nothing(world: World, filters: dict[str, Any], count: bool) -> None:
    """
    Pages put together are the whole, though mail came in between.

    They go by offset or by the place where the last page ended.
    """
    shop = busy(world, seed=9)
    whole = [past.id for past in shop.history(limit=NEVER, **filters).messages]
    by_offset = [
        past.id
        for at in range(0, len(whole) + 7, 7)
        for past in shop.history(limit=7, offset=at, count=count, **filters).messages
    ]
    page = shop.history(limit=7, count=count, **filters)
    by_key, totals = [past.id for past in page.messages], {page.total_count}
    while page.next is not None:
        shop.session("s").send("nobody", "a newcomer", topic="a")
        page = shop.history(limit=7, after=page.next, count=False, **filters)
        by_key += [past.id for past in page.messages]

    assert (whole, whole) == (by_offset, by_key)
    assert {len(whole) if count else None} == totals
    assert not page.has_more


def test_newest_first_by_default_a_hundred(world: World) -> None:
    """By default a page holds the hundred newest, their number, and whether there are more."""
    shop = world.open("shop", hold_unknown=True)
    ids = shop.send_many([("nobody", n) for n in range(130)])
    page = shop.history()

    assert (ids[:-101:-1], 130, True) == (
        [past.id for past in page.messages],
        page.total_count,
        page.has_more,
    )
    assert ([], 130, True) == (
        (empty := shop.history(limit=0)).messages,
        empty.total_count,
        empty.has_more,
    )
    assert 130 == shop.file.stats()["pending"]


def test_a_time_is_found_though_the_clock_stepped_back(world: World) -> None:
    """
    A span of time holds the messages from then, wherever they lie.

    Rows of one chapter need not be in the order of their times.
    """
    shop = world.open("shop", hold_unknown=True)
    rng = random.Random(1)
    moments = [
        BEGINNING + 1000 + n * 10 + rng.choice((0, 0, 0, -9000, 9000)) for n in range(4 * LENGTH)
    ]
    for at in range(0, len(moments), LENGTH):
        shop.send_many([("nobody", None)] * LENGTH)
        first = [(moment, at + place + 1) for place, moment in enumerate(moments[at : at + LENGTH])]
        shop._db.write(
            lambda tx, first=first: tx.many(
                "UPDATE _onceward_outbox SET created_at = ? WHERE seq = ?", first
            )  # type: ignore[misc]
        )
        if at == 2 * LENGTH:
            shop.file.run_maintenance()
    for since, until in (
        (0, 500),
        (1000, 2000),
        (19_990, 20_010),
        (-(10**6), 10**6),
        (50_000, 60_000),
    ):
        begin, end = BEGINNING + since, BEGINNING + until
        wanted = sum(begin <= moment < end for moment in moments)
        assert wanted == shop.history(since=begin, until=end, limit=0).total_count, (since, until)

    assert 3 <= shop._db.read("SELECT count(*) FROM _onceward_time_index")[0][0]


def test_chapters_go_with_their_rows(world: World) -> None:
    """What is forgotten leaves no chapter behind."""
    world.audited = False
    shop = world.open("shop", hold_unknown=True)
    shop.send_many([("nobody", None)] * (2 * LENGTH + 5))
    shop.file.run_maintenance()
    before = shop._db.read("SELECT count(*) FROM _onceward_time_index")[0][0]
    shop._db.write(
        lambda tx: tx.run(
            (
                "UPDATE _onceward_outbox"
                " SET state = 'acked', sent_at = 1, ended_at = 1, created_at = 1 WHERE seq <= ?"
            ),
            (LENGTH + 1,),
        )
    )
    shop._db.write(lambda tx: bump(tx, ended_pending=LENGTH + 1, acked=LENGTH + 1))
    world.clock.forward(8 * 86_400)
    shop.file.run_maintenance()
    shop.send_many([("nobody", None)] * LENGTH)
    shop.file.run_maintenance()

    assert (2, [(2 * LENGTH,), (3 * LENGTH,)]) == (
        before,
        shop._db.read("SELECT last_seq FROM _onceward_time_index"),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"limit": -1},
        {"offset": -1},
        {"state": "lost"},
        {"topic": "a.#.b"},
        {"topic": "a..b"},
        {"priority": "highest"},
        {"content": "("},
        {"content": ""},
        {"content": "a" * 1001},
        {"content": "[z-"},
        {"content": "a\0b"},
        {"after": "7"},
        {"after": ""},
    ],
    ids=str,
)
def test_a_filter_that_is_none_is_refused(world: World, wrong: dict[str, Any]) -> None:
    """A misspelt filter finds an error, not nothing."""
    shop = world.open("shop")
    with pytest.raises(InvalidArgument):
        shop.history(**wrong)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$b", "(a|a)*c", "(a*)*c", "a*a*a*a*a*a*c", "(.*)(.*)(.*)(.*)c"]
)
def test_no_pattern_takes_long(world: World, pattern: str) -> None:
    """Patterns that hang other matchers are done at once over half a megabyte."""
    shop = world.open("shop", hold_unknown=True)
    shop.send("nobody", "a" * 500_000)

    assert 0 == shop.history(content=pattern).total_count
    assert 1 == shop.history(content="^a+$").total_count


@pytest.mark.parametrize(
    "pattern",
    ["(a{1,30}){1,30}z", "a{251}", "(a|b|aa){1,20}{1,3}z", "(((a{9}){9}){9}){9}", "(a*){200}z"],
)
def test_a_pattern_of_too_many_steps_is_refused(world: World, pattern: str) -> None:
    """Repetitions of repetitions multiply: the error says so before any text is read."""
    shop = world.open("shop", hold_unknown=True)
    shop.send("billing", "a" * 5000)

    with pytest.raises(InvalidArgument, match="about 250 steps"):
        shop.history(content=pattern)
    assert 1 == shop.history(content="^a{100}").total_count


@pytest.mark.broken("a frame is damaged")
def test_a_damaged_frame_hides_no_other(world: World) -> None:
    """A search through bodies skips what cannot be read."""
    world.audited = False
    shop = world.open("shop", hold_unknown=True)
    broken, sound = shop.send_many([("nobody", "find me"), ("nobody", "find me")])
    shop._db.write(lambda tx: tx.run("DROP TRIGGER _onceward_outbox_frame_guard"))
    shop._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_outbox SET frame = substr(frame, 9) WHERE id = ?", (broken,)
        )
    )

    assert [sound] == [past.id for past in shop.history(content="find").messages]
    assert [broken] == [past.id for past in shop.thread(broken)]


def answering() -> Agent:
    """Return an agent that answers questions, asks a third, and tells a fourth."""
    agent = Agent("oracle")

    @agent.on("ask")
    def answer(body: str, ctx: Context) -> None:
        ctx.send("third", body + "?", type="ask", priority="urgent")
        ctx.send("shop", "by the way", type="note")
        ctx.reply(body + "!")

    return agent


def test_a_conversation_is_whole_and_in_order(world: World) -> None:
    """
    A question, its answers and the messages that it caused are one thread.

    The thread is the same from each of its messages, and from no other.
    """
    shop, oracle = world.open("shop"), world.open(answering())
    world.open("third")
    asked = shop.send("oracle", "why", type="ask")
    shop.send("oracle", "what", type="ask")
    world.clock.forward(1)
    world.settle()
    thread = oracle.thread(asked)

    assert asked == thread[0].id
    assert {("in", "ask"), ("out", "ask"), ("out", "note"), ("out", "text")} == {
        (past.box, past.type) for past in thread
    }
    assert [[past.id for past in thread]] * 4 == [
        [each.id for each in oracle.thread(past.id)] for past in thread
    ]
    assert [asked, "note", "text"] == [asked, *sorted(past.type for past in shop.thread(asked)[1:])]
    assert [] == shop.thread("unknown")


@pytest.mark.parametrize("earlier", [0, 1, 3_600_000])
@pytest.mark.parametrize("agent", ["shop", "oracle"])
def test_no_answer_stands_before_its_question(world: World, agent: str, earlier: int) -> None:
    """Of one moment, or by a clock that is behind, answers stand behind what they answer."""
    world.open("third")
    boxes = {"shop": world.open("shop"), "oracle": world.open(answering())}
    asked = boxes["shop"].send("oracle", "why", type="ask")
    world.settle()
    box, now = boxes[agent], world.clock.now()
    with box.begin() as tx:
        for statement in (
            "UPDATE _onceward_outbox SET created_at = :now - (id <> :asked) * :earlier",
            "UPDATE _onceward_inbox SET received_at = :now - (id <> :asked) * :earlier",
        ):
            tx.execute(statement, {"now": now, "asked": asked, "earlier": earlier})
    thread = box.thread(asked)

    assert asked == thread[0].id
    assert {asked} < {past.id for past in thread}


def test_dead_members_stay_in_their_conversation(world: World) -> None:
    """A message that died is still told with the others."""
    shop = world.open("shop", hold_unknown=True)
    first = shop.send("nobody", "one", correlation_id="talk")
    world.clock.forward(1)
    second = shop.send("nobody", "two", correlation_id="talk", ttl=1, delay=1)
    world.wait(5)

    assert [(first, "sending"), (second, "dead")] == [
        (past.id, past.state) for past in shop.thread(first)
    ]
    assert [first, second] == [past.id for past in shop.thread(second)]


def test_looking_back_sees_what_its_own_transaction_wrote(world: World) -> None:
    """
    Inside a block history and thread show the block's messages, and a rollback takes them back.

    That holds also where bodies are searched.
    """
    shop = world.open("shop", hold_unknown=True)
    with shop.begin() as tx:
        message = tx.send("nobody", "draft")
        seen = shop.history(content="dra").messages
        told = shop.thread(message)
    found = [[past.id for past in each] for each in (seen, told)]

    assert [[message]] * 2 == found


def test_asyncio_looks_back_alike(world: World) -> None:
    """The awaitable twins answer the same."""
    shop = busy(world, seed=3)
    wanted = shop.history(sender="one", limit=3)
    message = wanted.messages[0].id
    thread = shop.thread(message)

    async def look() -> tuple[Any, Any]:
        async with AsyncPostbox(
            shop.file.path, start=False, testing=Controls(clock=world.clock)
        ) as box:
            return await box.history(sender="one", limit=3), await box.thread(message)

    assert (wanted, thread) == asyncio.run(look())


def test_words_are_found_where_the_agent_opted_in(world: World) -> None:
    """
    Sent, received and dead messages are found by their words, and no others are.

    Case and accents do not matter.
    """
    shop, other = world.open("shop", search=True, hold_unknown=True), world.open("one")
    sent = shop.send("nobody", "Die Größe zählt, says the invoice")
    dead = shop.send("nobody", Note(text="an INVOICE that expired"), ttl=1, delay=1)
    other.send("shop", {"about": "invoices", "n": 12})
    shop.send("nobody", b"invoice")
    assert {sent, dead} == {past.id for past in shop.search("invoice").messages}
    world.wait(5)

    assert [("sending", sent), ("dead", dead)] == sorted(
        ((past.state, past.id) for past in shop.search("invoice").messages),
        key=lambda each: each[1],
    )
    assert [sent] == [past.id for past in shop.search("große ZAHLT").messages]
    assert [3, 1, 1, 0, 0] == [
        shop.search(text).total_count
        for text in ("invoic*", '"says the invoice"', "ABOUT 12", '"the says"', "invoice unheard")
    ]
    page = shop.search("invoic*", limit=2)
    assert (2, 3, True) == (len(page.messages), page.total_count, page.has_more)
    assert 1 == len(shop.search("invoic*", limit=2, offset=2).messages)


def test_what_is_forgotten_is_not_found(world: World) -> None:
    """A pruned message leaves the index; one that comes later is found."""
    world.audited = False
    shop, one = world.open("shop", search=True), world.open("one")
    shop.peers.add("one", "wire:one")
    shop.send("one", "old words")
    world.settle()
    for message in one.receive_each(timeout=0):
        message.ack()
    world.settle()
    assert 1 == shop.search("words").total_count
    world.clock.forward(8 * 86_400)
    shop.file.run_maintenance()
    new = shop.send("one", "new words")

    assert [new] == [past.id for past in shop.search("words").messages]
    shop.file.run_maintenance()
    assert 2 >= shop._db.read("SELECT count(*) FROM _onceward_search_docs")[0][0]


def test_a_search_is_only_words(world: World) -> None:
    """
    Nothing that a user types is a syntax error of the index.

    A text without words finds nothing, as words do that stand nowhere.
    """
    shop = world.open("shop", search=True)
    typed = (
        "",
        "   ",
        '""',
        "- + *",
        "* ^",
        "\0",
        "NEAR(",
        'a "b',
        "a AND NOT",
        "x:y",
        "it's (so)",
    )

    assert [(0, [], False)] * len(typed) == [
        (page.total_count, page.messages, page.has_more) for page in map(shop.search, typed)
    ]


def test_without_opting_in_there_is_no_index(world: World) -> None:
    """The error says how to opt in; opting out again leaves nothing behind."""
    shop = world.open("shop", hold_unknown=True)
    with pytest.raises(InvalidArgument, match="search=True"):
        shop.search("words")
    tables = "SELECT count(*) FROM sqlite_schema WHERE name GLOB '_onceward_search*'"
    before = shop._db.read(tables)
    world.shut()
    world.open("shop", search=True).send("shop", "words")
    world.shut()
    shop = world.open("shop", search=False)

    assert [(0,)] == before == shop._db.read(tables)


def test_a_record_has_the_fields_of_a_message(world: World) -> None:
    """What a reader of messages knows by name it finds in records, with the same values."""
    box = world.open("a")
    box.send(
        "a", {"n": 1}, type="job", topic="t", priority="urgent", headers={"tags": "x,y"}, ttl=60
    )
    box.run_until_idle()
    message = box.receive()
    assert message is not None
    [record] = box.sessions.tail()
    fields = {
        name
        for name in dir(message)
        if not name.startswith("_") and not callable(getattr(message, name))
    } - {"attempt", "settled"}

    assert {"body", "correlation_id", "created_at", "id", "received_at", "sender"} <= fields
    assert {name: getattr(message, name) for name in fields} == {
        name: getattr(record, name) for name in fields
    }
