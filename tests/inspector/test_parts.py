"""Words, secrets, journeys and diagrams: what pages are made of, without a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import stop_never, wait_none

from onceward import Agent, Context, Message, Postbox, RetryPolicy, step
from onceward.file.read_only import opened
from onceward.message.clock import SystemClock
from onceward.message.redaction import HIDDEN, Redaction, visible
from onceward.ops.inspector import words
from onceward.ops.inspector.chart import Chart, chosen, together
from onceward.ops.inspector.journey import phases, steps
from onceward.ops.inspector.pages.live import Streams
from onceward.ops.inspector.pages.message import NOTHING
from onceward.ops.inspector.refresher import RANGES
from onceward.ops.inspector.sequence import diagram, exchanges
from onceward.ops.inspector.site import Site
from onceward.ops.views.conversation import Part, Spoken
from onceward.ops.views.messages import message
from onceward.ops.views.rates import Rates
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from starlette.testclient import TestClient
    from tests.inspector.conftest import Home

Journey = Callable[..., list[tuple[str, str]]]


@pytest.mark.parametrize(
    ("millis", "span", "age"),
    [(0, "0 ms", "0 s"), (999, "999 ms", "0 s"), (1500, "1.5 s", "1 s"), (59_000, "59 s", "59 s"),
     (90_000, "2 min", "1 min"), (7_200_000, "2 h", "2 h"), (-3000, "-3.0 s", "0 s"),
     (864_000_000, "10 d", "10 d")],
)  # fmt: skip
def test_spans_are_words(millis: int, span: str, age: str) -> None:
    """In their largest unit; an age is whole and never negative."""
    assert (span, age) == (words.span(millis), words.age(millis))


def test_moments_of_any_file_are_shown() -> None:
    """Also one that no calendar has."""
    assert "2026-01-01 00:00:00.007 UTC" == words.moment(1_767_225_600_007)
    assert "2026-01-01T00:00:00.007Z" == words.rfc3339(1_767_225_600_007)
    assert str(1 << 80) == words.moment(1 << 80)


def test_counts_end_where_counting_did() -> None:
    """Above it stands a plus."""
    assert ["9,999", "10,000", "10,000+"] == [words.bounded(n) for n in (9_999, 10_000, 10_001)]


def test_fields_are_hidden_with_all_that_is_in_them() -> None:
    """By their names at any depth; other values stay."""
    body = {"a": [{"password": {"x": 1}, "API-Key": "k"}], "n": 1.5, "token_count": None}

    assert {"a": [{"password": HIDDEN, "API-Key": HIDDEN}], "n": 1.5, "token_count": HIDDEN} == (
        Redaction().value(body)
    )


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmVk"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401 for Bearer abc123-def", f"401 for Bearer {HIDDEN}"),
        ("no such key: sk-proj-abcdefghijklmnop", f"no such key: {HIDDEN}"),
        (f"bad signature of {JWT}, sent", f"bad signature of {HIDDEN}, sent"),
        ("-----BEGIN EC PRIVATE KEY-----\nMI\n-----END EC PRIVATE KEY----- read", f"{HIDDEN} read"),
        ("-----BEGIN PRIVATE KEY-----\nMII, cut", HIDDEN),
        ("card 4111 1111 1111 1111 refused", f"card {HIDDEN} refused"),
        ("order 4111111111111112, at 1763938000123", "order 4111111111111112, at 1763938000123"),
        ("cannot reach postgres://shop:pa55@db", f"cannot reach postgres://shop:{HIDDEN}@db"),
        ("GET /pay?token=abc&order=7 failed", f"GET /pay?token={HIDDEN}&order=7 failed"),
        ("Cookie: a=1; b=2\nHost: h", f"Cookie: {HIDDEN}\nHost: h"),
        ("got {'pwd': 'a b', 'n': 1}", f"got {{'pwd': {HIDDEN}, 'n': 1}}"),
        (r'got {\"jwt\": \"a \\\"b\", \"n\": 1}', rf'got {{\"jwt\": {HIDDEN}, \"n\": 1}}'),
        ("TokenError: it expired, token == None", "TokenError: it expired, token == None"),
    ],
)  # fmt: skip
def test_secrets_in_a_text_are_hidden(text: str, shown: str) -> None:
    """Also where no pattern is given; the words around them stay."""
    assert shown == Redaction().text(text)


def test_json_inside_a_string_is_hidden_field_by_field() -> None:
    """As in the arguments of a tool call, at any depth; a string without a secret stays."""
    inner = json.dumps({"city": "Rome", "jwt": "x", "more": json.dumps([{"cookie": "y"}])})
    more = json.dumps([{"cookie": HIDDEN}], ensure_ascii=False)
    body = {"arguments": inner, "plain": '{"n":  1}', "deep": "[" * 100_000}

    assert {
        "arguments": json.dumps({"city": "Rome", "jwt": HIDDEN, "more": more}, ensure_ascii=False),
        "plain": '{"n":  1}',
        "deep": HIDDEN,
    } == Redaction().value(body)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay\u202eexe.fdp", r"pay\u{202e}exe.fdp"),
        ("ad\u200bmin", r"ad\u{200b}min"),
        ("ad\u200dmin \u200c", r"ad\u{200d}min \u{200c}"),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
        ("line\n\ttab", "line\n\ttab"),
    ],
)  # fmt: skip
def test_characters_that_a_reader_does_not_see_are_shown(text: str, shown: str) -> None:
    """Direction marks and zero widths as escapes; joiners inside scripts that need them stay."""
    assert shown == visible(text)


def test_a_pattern_hides_text_numbers_names_and_errors() -> None:
    """Wherever it matches, in text that is not JSON too."""
    hide = Redaction([r"\d{6,}", "iban"])

    assert {"note": f"call {HIDDEN} now", "phone": HIDDEN, f"{HIDDEN}_of": HIDDEN} == hide.value(
        {"note": "call 123456 now", "phone": 1234567, "iban_of": "x"}
    )
    assert f"not json {HIDDEN}" == hide.json("not json 999999")
    assert (f"bad {HIDDEN}", None) == (hide.error("bad 123456"), hide.error(None))
    assert HIDDEN in hide.json("[" * 100_000 + "123456")


def test_agents_of_other_places_cost_a_page_no_look_at_the_folder(
    web: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page asks for the file of each agent that it names, and there may be thousands of files."""
    monkeypatch.setattr(site.targets, "files", lambda: pytest.fail("the folder was listed"))

    assert (None, "shop") == (site.key_of("elsewhere"), site.key_of("shop"))
    assert "warehouse" in web.get("/agents/shop/messages?peer=warehouse").text


def test_a_message_to_oneself_has_one_file(home: Home) -> None:
    """Each step once."""
    with Postbox(home.path / "shop.db", start=False, testing=Controls(clock=home.clock)) as shop:
        sent = shop.send("shop", 1, type="note")
        shop.run_until_idle()
    with opened(home.path / "shop.db") as reader:
        found = message(reader, sent)

    told = [step.what for step in steps(found, found)]
    assert ["committed", "accepted"] == [what for what in told if what in {"committed", "accepted"}]
    assert len(told) == len(set(told))
    assert ["outbox", "inbox"] == [phase.name for phase in phases(found, found)]


@pytest.fixture
def journeys(tmp_path: Path) -> Iterator[Journey]:
    """Return a call that sends a message to an agent and tells its journey after some rounds."""
    clock, worker = ManualClock(SystemClock().now()), Agent("worker")  # triggers have this one

    @worker.on("fails")
    def fail(body: object) -> None:
        msg = "no connection"
        raise RuntimeError(msg)

    @worker.on("asks")
    def ask(body: object, ctx: Context) -> str:
        return ctx.ask("shop", "what", reply=str, type="question", timeout="1d")

    with ExitStack() as stack:
        opened_box = partial(
            Postbox,
            start=False,
            testing=Controls(clock=clock),
            transitions=True,
            delivery_retry="1s..1s ±0%",
            handler_retry="1s..1s ±0%",
        )
        shop = stack.enter_context(opened_box(tmp_path / "shop.db", agent="shop"))
        box = stack.enter_context(
            opened_box(tmp_path / "worker.db", agent=worker, handler_attempts=3)
        )

        def journey(kind: str, rounds: int, replays: int = 0) -> list[tuple[str, str]]:
            sent = shop.send("worker", 1, type=kind)
            for replayed in range(replays + 1):
                if replayed:
                    box.dead_letters.replay(sent)
                _work(rounds)
            with opened(shop.file.path) as here, opened(box.file.path) as there:
                both = message(here, sent), message(there, sent)
            return [(step.what, step.detail) for step in steps(*both)]

        def _work(rounds: int) -> None:
            for _ in range(rounds):
                shop.run_until_idle()
                box.run_until_idle()
                clock.advance(2)
            shop.run_until_idle()

        yield journey


def test_a_dead_letter_tells_its_attempts(journeys: Journey) -> None:
    """Each attempt with its error, and that it was accepted; its dedup record is not a step."""
    told = journeys("fails", 6)
    error = "RuntimeError: no connection"

    assert [("accepted", "normal")] == [step for step in told if step[0] == "accepted"]
    assert [f"tried, attempt {n}" for n in (1, 2)] == [w for w, _ in told if "attempt" in w]
    assert {f"last error: {error}"} == {d for what, d in told if what.startswith("tried")}
    assert [("dead letter", f"attempts_spent after 3 attempts: {error}")] == [
        step for step in told if "dead" in step[0]
    ]


def test_a_replayed_dead_letter_tells_both_lives(journeys: Journey) -> None:
    """Its first death and the replay stay in the journey; attempts are counted again."""
    told = journeys("fails", 6, replays=1)
    error = "RuntimeError: no connection"

    assert 1 == [what for what, _ in told].count("accepted")
    assert [("replayed", "was a dead letter")] == [step for step in told if step[0] == "replayed"]
    assert ["attempts_spent", f"attempts_spent after 3 attempts: {error}"] == sorted(
        detail for what, detail in told if what == "dead letter"
    )
    assert ["tried, attempt 1"] * 2 + ["tried, attempt 2"] * 2 == sorted(
        what for what, _ in told if what.startswith("tried")
    )


@pytest.mark.parametrize("transitions", [False, True])
def test_a_replay_is_told_without_transitions_too(tmp_path: Path, transitions: bool) -> None:
    """By the count that the message bears; its time is not known then."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, transitions=transitions) as box:
        sent = box.send("a", 1)
        box.run_until_idle()
        message_of(box).reject("no")
        box.dead_letters.replay(sent)
        with opened(box.file.path) as reader:
            found = message(reader, sent)
        told = [step for step in steps(found, found) if step.what == "replayed"]
        message_of(box).ack()

    details = [step.detail for step in told]
    assert [
        "was a dead letter" if transitions
        else "was a dead letter; the time is known only if transitions are recorded"
    ] == details  # fmt: skip


def message_of(box: Postbox) -> Message[Any]:
    """Return the next message of a box."""
    found = box.receive(timeout=0)
    assert found is not None
    return found


def test_a_handler_that_waits_for_a_reply_has_not_failed(
    journeys: Journey,
) -> None:
    """The journey names the request whose reply it waits for."""
    [(_, detail)] = [step for step in journeys("asks", 1) if step[0] == "waits for a reply"]

    assert detail.startswith("waits for the reply to ")


def test_steps_and_streams_of_the_handler_are_drawn(tmp_path: Path) -> None:
    """With their seconds and attempts, what they wait for, and how much was put out."""
    agent, clock = Agent("a"), ManualClock()
    at_once = RetryPolicy(wait_none(), stop_never)
    agent.waits("approved")

    @agent.on("job")
    def work(body: int, ctx: Context) -> None:
        def away() -> None:
            ctx.stream().append("begun")
            clock.advance(2)
            if step.attempt < 2:
                raise OSError("away")

        ctx.step(away, attempts=2, retry=at_once)
        ctx.sleep(60)
        ctx._steps.wait("approved", None)

    options: dict[str, Any] = {"start": False, "testing": Controls(clock=clock)}
    with Postbox(tmp_path / "a.db", agent=agent, **options) as box:
        sent = box.send("a", 1, type="job")
        for pause in (0, 61):
            clock.advance(pause)
            box.run_until_idle()
        with opened(box.file.path) as reader:
            found = message(reader, sent)
    told = [
        (each.what, each.detail, each.tone)
        for each in steps(found, found)
        if each.what.startswith(("step ", "stream "))
    ]

    assert [
        ("step away", "done in 4 s, 2 attempts", "plain"),
        ("stream away", "1 chunk, 7 bytes, attempt 1", "plain"),
        ("step sleep", "until then", "plain"),
        ("step wait approved", "waits for approved", "wait"),
    ] == told


def test_asking_again_is_one_step(journeys: Journey) -> None:
    """However often, and at the moment of the last time."""
    told = [step for step in journeys("asks", 60) if step[0] == "asked again"]

    assert [("asked again", "no receipt had arrived, 2 times")] == told


def test_a_message_that_no_file_knows_has_no_journey() -> None:
    """Nothing is invented."""
    assert ([], [], False) == (steps(NOTHING, NOTHING), phases(NOTHING, NOTHING), bool(NOTHING))


def spoken(message_id: str, sender: str, recipient: str, at: int, state: str) -> Spoken:
    """Return a message as one file has it."""
    return Spoken(message_id, sender, recipient, "s", "t" * 40, state, at, None, None, None, None)


def test_what_two_files_tell_of_a_message_is_one_arrow() -> None:
    """With the outcome that the recipient has; the time on the way is between the two."""
    there = Part((spoken("1", "a", "b", 10, "sent"),), (), ())
    here = Part((), (spoken("1", "a", "b", 15, "processed"),), ())
    [each] = exchanges([there, here])
    drawn = diagram([each])

    assert (10, 15, "processed") == (each.sent_at, each.received_at, each.state)
    assert ["a", "b"] == [name for name, _ in drawn.agents]
    assert ("good", 24, False) == (
        drawn.arrows[0].tone,
        len(drawn.arrows[0].label),
        drawn.arrows[0].to_itself,
    )


def test_an_answer_by_a_clock_that_is_behind_stands_below_its_question() -> None:
    """The cause says the order, not the times of two machines."""
    question, reply = (
        spoken("1", "a", "b", 10, "sent"),
        replace(spoken("2", "b", "a", 5, "sent"), cause="1"),
    )

    assert ["1", "2"] == [
        each.id for each in exchanges([Part((reply,), (), ()), Part((question,), (), ())])
    ]


def test_no_message_stands_above_its_cause() -> None:
    """Where a clock is behind, or all happened in one millisecond; a circle of causes ends."""
    causes = {"1": None, "4": "1", "3": "4", "2": "3", "5": "6", "6": "5"}
    times = {"1": 50, "4": 50, "3": 49, "2": 60, "5": 70, "6": 70}
    sent = tuple(
        Spoken(name, "a", "b", "s", "t", "sent", times[name], None, cause, None, None)
        for name, cause in causes.items()
    )

    assert ["1", "4", "3", "2"] == [each.id for each in exchanges([Part(sent, (), ())])][:4]
    assert 6 == len(exchanges([Part(sent, (), ())]))


def test_one_id_for_two_recipients_is_two_arrows() -> None:
    """Copies of a message to many may bear one id; a message to oneself has a loop."""
    part = Part(
        (spoken("1", "a", "b", 1, "sent"), spoken("1", "a", "c", 1, "sent"),
         spoken("2", "a", "a", 2, "sent")), (), ()
    )  # fmt: skip
    drawn = diagram(exchanges([part]))

    assert [False, False, True] == [arrow.to_itself for arrow in drawn.arrows]
    assert drawn.width > drawn.agents[-1][1]


def test_rates_of_agents_are_added_span_by_span() -> None:
    """One that was counted two spans ago is moved by as many."""
    now = Rates(600, 100, (0, 0, 1), (0, 0, 0), (1, 1, 1))
    old = Rates(400, 100, (5, 6, 7), (0, 0, 2), (0, 0, 0))

    assert Rates(600, 100, (7, 0, 1), (2, 0, 0), (1, 1, 1)) == together([now, old])
    assert together([]) is None


def test_a_chart_has_its_numbers_as_rows() -> None:
    """The newest first; spans without messages have none. An unknown range is the first one."""
    found = Rates(600, 100, (0, 0, 1), (0, 0, 2), (3, 0, 0))
    chart = Chart("/rates.json", "hour", ("hour", "day"), found)

    assert [(500, 1, 2, 0), (300, 0, 0, 3)] == chart.rows
    assert [] == Chart("/rates.json", "hour", ("hour",), None).rows
    assert ["day", "hour", "hour"] == [chosen(each, RANGES) for each in ("day", "year", "")]


def test_a_stream_tells_the_names_of_what_has_changed(site: Site, home: Home) -> None:
    """One event for a commit; the stream ends with the program."""

    async def told() -> list[str]:
        streams = Streams()
        events = streams.events(site, ["mailer"], None)
        found = [await anext(events)]
        with Postbox(
            home.path / "mailer.db", start=False, testing=Controls(clock=home.clock)
        ) as mailer:
            mailer.file.pause()
            await asyncio.to_thread(site.refresher.refresh)
        found.append(await anext(events))
        streams.stopped = True
        return found + [event async for event in events]

    version = site.refresher.version
    assert [
        f"retry: 2000\nid: {version}\n\n",
        f'event: changed\nid: {version + 1}\ndata: ["mailer"]\n\n',
    ] == asyncio.run(told())
