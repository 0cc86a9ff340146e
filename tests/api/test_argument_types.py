"""A value of another type than annotated is refused by name, before anything is written."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from onceward import (
    Agent,
    AsyncPostbox,
    Context,
    Message,
    Postbox,
    RetryPolicy,
    Run,
    Settings,
    step,
)
from onceward.errors import InvalidArgument, InvalidMessage
from onceward.events import DeadLettered
from onceward.message.arguments import Accepted, accepted, checked
from onceward.message.record import Ticket
from onceward.testing import Harness, ManualClock

UNCHECKED: Final = {
    "send": "hot", "send_many": "hot", "publish": "hot", "broadcast": "hot", "Channel.send": "hot",
    "receive": "checks in its body", "receive_one": "checks in its body",
    "Channel.receive": "checks in its body",
    "Mailbox.receive": "checks in its body", "Mailbox.lease": "checks in its body",
    "Mailbox.send": "hot", "Message.reply": "hot",
    "session": "its name is that of a message: InvalidMessage",
    "on": "refuses an event or a hook when it is registered",
    "query": "checks statement and bindings itself, for tx.execute too",
    "Channels.create": "names the field of a channel", "Channels.ensure": "names the field",
}  # fmt: skip
"""Methods whose values are checked where they are used, and why."""
WRONG: Final[dict[type, list[Any]]] = {
    bool: [1, "yes", None],
    int: [True, -1, 2**70, 1.5, "1", math.nan],
    str: [5, b"x", "a\0b", "\ud800", ["x"]],
    Iterable: ["letters", b"bytes", {"a": 1}, 5],
}
"""What no parameter of a type accepts."""
TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE '_onceward%'"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """A postbox without engines, beside a second agent's file."""
    Postbox(tmp_path / "b.db", agent="b", start=False).close()
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        yield box


def written(box: Postbox) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {name: box.query(f"SELECT count(*) FROM {name}")[0][0] for (name,) in box.query(TABLES)}


def own(
    a: str,
    *d: Ticket,
    b: bool | None = None,
    e: Iterable[str] = (),
    g: object = 0,
    h: int = 0,
    i: float = 0,
    j: str = "",
) -> None:
    """Have parameters of several kinds."""


def test_what_annotations_accept() -> None:
    """Types of values and of their items; an object may be anything."""
    assert {
        "a": Accepted((str,)),
        "d": Accepted((Ticket,)),
        "b": Accepted((bool, type(None))),
        "e": Accepted((Iterable,), Accepted((str,))),
        "g": None,
        "h": Accepted((int,)),
        "i": Accepted((float, int)),
        "j": Accepted((str,), empty=True),
    } == accepted(own)


@pytest.mark.parametrize(
    ("args", "named", "said"),
    [
        ((1,), {}, "a=1 must be text"),
        (("x", Ticket("1", "b"), 2), {}, "d=2 must be Ticket"),
        (("x",), {"b": "yes"}, "b='yes' must be True or False or None"),
        (("x",), {"e": 5}, "e=5 must be a list"),
        (("x",), {"e": ["y", 5]}, "an item of e=5 must be text"),
        (("x",), {"e": {"y": 5}}, "e={'y': 5} must be a list"),
        (("x",), {"e": "letters"}, "e='letters' must be a list"),
        (
            ("x",),
            {"e": ["a\0"]},
            "an item of e='a\\x00' must hold neither NUL nor half a surrogate",
        ),
        (("",), {}, "a='' must not be empty"),
        (("\ud800",), {}, "a='\\ud800' must hold neither NUL nor half a surrogate pair"),
        (("x",), {"h": True}, "h=True must be a whole number"),
        (("x",), {"h": -1}, "h=-1 must be 0 to 4611686018427387904"),
        (("x",), {"i": math.nan}, "i=nan must be 0 to 4611686018427387904"),
    ],
)
def test_the_error_says_what_to_give(
    args: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    """It names the argument, quotes the value, and spells the types in words."""
    with pytest.raises(InvalidArgument) as error:
        checked(own)(*args, **named)

    assert str(error.value).startswith(said)


def test_right_types_are_passed_on() -> None:
    """So is a keyword that does not exist, about which the call itself speaks."""
    checked(own)("x", Ticket("1", "b"), b=None, e=(each for each in "ab"), g=[])

    with pytest.raises(TypeError, match="unexpected keyword"):
        checked(own)("x", f=1)  # type: ignore[call-arg]


def verbs(*of: object) -> dict[str, Callable[..., Any]]:
    """Return the public methods of objects by name; those of a postbox and message are bound."""
    return {
        name if isinstance(each, Postbox) else f"{type(each).__name__}.{name}": call
        for each in of
        for name, call in inspect.getmembers(each, inspect.ismethod)
        if name[0] != "_" and accepted(inspect.unwrap(call.__func__))
    }


def test_every_other_verb_checks_every_argument(box: Postbox) -> None:
    """Each parameter and each option of each method refuses an object that is nothing."""
    channel, mailbox = box.channels.ensure("c"), box.mailboxes.ensure("m", public=True)
    box.send("a", 1)
    box.run_until_idle()
    message = box.receive()
    assert isinstance(message, Message)
    found = verbs(
        box, box.agents, box.peers, box.dead_letters, box.sessions, box.schedules, box.limits,
        box.groups, box.pools,
        box.file, box.channels, channel, box.mailboxes, mailbox, message,
    )  # fmt: skip
    before, tried = written(box), 0

    for name in found.keys() - UNCHECKED:
        for parameter, rule in accepted(inspect.unwrap(found[name].__func__)).items():  # type: ignore[attr-defined]
            if rule is not None and parameter != "others":
                tried += 1
                with pytest.raises(InvalidArgument, match=rf"^{parameter}=<object .* must be "):
                    found[name](**{parameter: object()})

    assert UNCHECKED.keys() == {n for n, call in found.items() if not hasattr(call, "__wrapped__")}
    assert tried > 150
    assert before == written(box)


def values_refused_by(name: str, rule: Accepted | None) -> list[Any]:
    """Return values that a parameter of one type does not accept."""
    if rule is None or rule.forms or name == "search":  # which looks for any words
        return []
    kinds = set(rule.types) - {type(None)}
    wrong = WRONG.get(kinds.pop(), []) if len(kinds) == 1 else []
    return [each for each in wrong if each is not None or type(None) not in rule.types]


def test_every_other_verb_checks_values(box: Postbox) -> None:
    """A number in range that is no bool, a text of characters, a list that is no text."""
    found = verbs(
        box, box.agents, box.peers, box.dead_letters, box.sessions, box.schedules, box.limits,
        box.groups, box.pools,
        box.file, box.channels, box.channels.ensure("c"), box.mailboxes,
        box.mailboxes.ensure("m", public=True),
    )  # fmt: skip
    before, tried = written(box), 0

    for name in found.keys() - UNCHECKED.keys():
        for parameter, rule in accepted(inspect.unwrap(found[name].__func__)).items():  # type: ignore[attr-defined]
            for wrong in values_refused_by(name, rule):
                tried += 1
                with pytest.raises(InvalidArgument, match=rf"^(an item of )?{parameter}\b"):
                    found[name](**{parameter: wrong})

    assert tried > 300
    assert before == written(box)


def handle(body: Any) -> None:
    """Handle nothing."""


def agent(**options: Any) -> object:
    """Declare an agent with a handler."""
    return Agent("x").on("y", **options)(handle)


def execute(box: Postbox, *args: Any) -> object:
    """Run a statement in a transaction."""
    with box.begin() as tx:
        return tx.execute(*args)


def execute_many(box: Postbox, rows: Any) -> None:
    """Run a statement with many bindings."""
    with box.begin() as tx:
        tx.executemany("SELECT ?", rows)


def dispatch(box: Postbox, **options: Any) -> str:
    """Give a task to another agent."""
    with box.begin() as tx:
        return tx.dispatch("b", 1, **options)


CALLS: Final[list[tuple[Callable[..., Any], list[Any]]]] = [
    (lambda box, it: box.send(it, 1), [5, ["b"], b"b"]),
    (lambda box, it: box.send("b", 1, headers=it), [5, "text", ["x"]]),
    (lambda box, it: box.send("b", 1, ephemeral=it), [5, "yes"]),
    (lambda box, it: box.send("b", 1, key=it), [5, b"k", ["k"]]),
    (lambda box, it: box.send("b", 1, ttl=it), [b"1", ["1"]]),
    (lambda box, it: box.send_many(it), [5, None, b"b", ["x"], [("b", 1, 2)]]),
    (lambda box, it: box.publish(it, 1), [5, b"t", None]),
    (lambda box, it: box.publish("t", 1, key=it), [5, b"k"]),
    (lambda box, it: box.request("b", 1, reply=it), [5, "text", ["x"], b"x"]),
    (lambda box, it: box.result(it, reply=dict), [5, None, b"x"]),
    (lambda box, it: box.follow(it), [5, None]),
    (lambda box, it: box.status(it), [5, None]),
    (lambda box, it: box.session(it), [5, None, b"s"]),
    (lambda box, it: box.session("s", topics=it), [5, b"t", [5]]),
    (lambda box, it: box.receive_one(it), [5, ["x"], b"x"]),
    (lambda box, it: box.attach(it), [5, ["x"], b"x"]),
    (lambda box, it: box.on(it, print), [5, ["sent"], None]),
    (lambda box, it: box.on(DeadLettered, it), [5, None, "print"]),
    (lambda box, it: Postbox(box.file.path, loop=it), [5, "loop"]),
    (lambda box, it: box.query(it), [5, None, b"SELECT 1", "", "SELECT 1\0"]),
    (lambda box, it: box.query("SELECT ?", it), [5, "x", [object()]]),
    (execute, [5, None, b"SELECT 1", "", "SELECT 1\0"]),
    (lambda box, it: execute(box, "SELECT ?", it), [5, "x", b"x", [object()], [2**70]]),
    (lambda box, it: execute(box, "SELECT :a", it), [{"b": 1}]),
    (lambda box, it: box.query("SELECT :a", it), [{"b": 1}, {"a": object()}]),
    (execute_many, [5, "x", {"a": 1}, [object()], [[object()]]]),
    (lambda box, it: box.send_many(it), [{"b": 1}, "b"]),
    (lambda box, it: box.publish("t", 1, type=it), [0, "", [], {}]),
    (lambda box, it: box.send("b", 1, headers=it), [0, "", [], ()]),
    (lambda box, it: box.send("b", 1, ephemeral=it), [0, "", []]),
    (lambda box, it: box.channels.get("c").send(1, correlation_id=it), [0, "", []]),
    (lambda box, it: box.channels.get("c").send(1, key="k", topic=it), [5, [], "\ud800"]),
    (lambda box, it: dispatch(box, session=it), [0, "", "\ud800"]),
    (lambda box, it: dispatch(box, key=it), ["\ud800", "", 0]),
    (lambda box, it: box.session("s", topics=it), [{"t": 1}]),
    (lambda box, it: box.mailboxes.get("m").handle("g", print, it), [5, object(), ["x"]]),
    (lambda _, it: Agent("x", description=it), [5, "\0", "\ud800"]),
    (lambda _, it: agent(no_retry=it), [0, "", [], "OSError"]),
    (lambda _, it: agent(batch=it), [0, True, 2**70, 1.5]),
    (lambda _, it: step(it), [5, "x", []]),
    (lambda _, it: step(keep_failure=it), [0, "no", ""]),
    (lambda _, it: step(tx=it), [1, "yes", []]),
    (lambda _, it: step(version=it), [0, [], "\0"]),
    (lambda _, it: step(name=it), [0, "", "\0"]),
    (lambda box, it: box.cancel("unknown", timeout=it), ["soon", -1, b"1"]),
    (lambda box, it: box.flush(it), ["soon", -1]),
    (lambda box, it: box.dead_letters.list(reason=it), ["expird", 5]),
    (lambda box, it: box.history(state=it), ["pendin", 5]),
    (lambda box, it: box.runs.list(state=it), ["runing", "", 5]),
    (lambda box, it: box.limits.remove(it), ["door", "", 5]),
    (lambda box, it: box.channels.get("c").pause(it), ["stop", "", 5]),
    (lambda box, it: box.channels.ensure("d", description=it), [5, None, ["x"]]),
    (lambda box, it: box.channels.get("c").send(1, key=it), [5, b"k"]),
    (lambda box, it: box.channels.get("c").receive(topics=it), [5, [5]]),
    (lambda box, it: box.mailboxes.get("m").lease("g", start=it), [5, ["latest"], None]),
    (lambda _, it: Agent("x", unhandled=it), [5, None, "drop"]),
    (lambda _, it: Agent("x", capabilities=it), [5, b"x", [5]]),
    (lambda _, it: Agent("x").include(it), [5, None]),
    (lambda _, it: Agent("x").at_open(it), [5, None]),
    (lambda _, it: Agent("x").waits(it), [5, None]),
    (lambda _, it: Agent("x").every(60, session=it)(handle), [5, ["x"]]),
    (lambda _, it: Agent("x").runs(inject=it)(handle), [5, "yes"]),
    (lambda _, it: Agent("x").runs(types=it)(handle), [5, None, [5]]),
    (lambda _, it: Agent("x").runs(allow_override_from=it)(handle), [5, None, [5]]),
    (lambda _, it: agent(retry=it), [5, "10"]),
    (lambda _, it: agent(timeout=it), [b"1", 0]),
    (lambda _, it: RetryPolicy(it, it), [5, None]),
    (lambda _, it: Settings(lease=it), [None, b"x", ["1"], "soon"]),
    (lambda _, it: Settings(search=it), [None, ["x"], 5]),
    (lambda _, it: Settings(leese=it), [5]),  # type: ignore[call-arg]
    (lambda _, it: Settings.five_minutes(workers=it), ["many", [1]]),
]
"""Verbs of the hot path and declarations, each with what it refuses."""
OPENED: Final[dict[str, list[Any]]] = {
    "path": [5, None],
    "agent": [5, ["a"], b"a"],
    "settings": [5, {"lease": 1}],
    "start": [None, 1, "no"],
    "transports": [5, ["http"], {"http": 5}],
    "listeners": [5, None, [5]],
    "testing": [5, {}],
}


@pytest.mark.parametrize(("call", "wrong"), CALLS)
def test_other_calls_refuse_values_where_they_use_them(
    box: Postbox, call: Callable[..., Any], wrong: list[Any]
) -> None:
    """Nothing is written, and the error is ours."""
    box.channels.ensure("c")
    box.mailboxes.ensure("m", public=True)
    before = written(box)

    for it in wrong:
        with pytest.raises(InvalidArgument):
            found = call(box, it)
            next(found)  # of a generator

    assert before == written(box)


def test_the_async_face_refuses_them_too(box: Postbox) -> None:
    """A coroutine that does not call its sync twin checks what it is given."""

    async def ask(tickets: Any) -> None:
        async with AsyncPostbox(box.file.path, start=False) as other:
            await other.gather(tickets, reply=dict)

    for tickets in (5, None, [5]):
        with pytest.raises(InvalidArgument):
            asyncio.run(ask(tickets))


@pytest.mark.parametrize(("name", "wrong"), OPENED.items())
def test_a_file_is_not_created_for_a_wrong_argument(
    tmp_path: Path, name: str, wrong: list[Any]
) -> None:
    """Neither face touches the folder before it has looked at what it is given."""

    async def open_async(given: dict[str, Any]) -> None:
        async with AsyncPostbox(**given):
            """Do nothing."""

    for it in wrong:
        given = {"path": tmp_path / "a.db", "agent": "a", "start": False, name: it}
        with pytest.raises(InvalidArgument):
            Postbox(**given)
        with pytest.raises(InvalidArgument):
            asyncio.run(open_async(given))

    if name not in {"transports", "listeners"}:  # which are made with the file open
        assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.write(5),
        lambda run: run.step(5),
        lambda run: run.at_end(None),
        lambda run: run.reply(1, to=5),
        lambda run: run.gather(5, reply=dict),
        lambda run: run.dispatch("b", 1, headers=5),
    ],
)
def test_a_run_refuses_wrong_types(box: Postbox, call: Callable[[Run], object]) -> None:
    """Its function gets the error where it made the mistake, not at the end of the run."""
    served, refused = Agent("r"), list[InvalidArgument]()

    @served.runs()
    def serve(run: Run) -> None:
        with pytest.raises(InvalidArgument) as error:
            call(run)
        refused.append(error.value)

    with Postbox(box.file.path.with_name("r.db"), agent=served, start=False) as other:
        other.send("r", 1)
        other.run_until_idle()

    assert 1 == len(refused)


GIVEN: Final[dict[str, Any]] = {
    "to": "b", "body": 1, "topic": "t", "reply": str, "what": "t", "span": 60, "ticket": "x",
    "tickets": ["x"],
}  # fmt: skip
"""Right values of parameters that a call must be given."""


@pytest.mark.parametrize(
    "call",
    [
        lambda _: ManualClock("now"),  # type: ignore[arg-type]
        lambda _: ManualClock().advance(math.nan),
        lambda _: ManualClock().step([1]),  # type: ignore[arg-type]
        lambda _: Harness(Agent("x"), clock=5),  # type: ignore[arg-type]
        lambda it: it.peer(["p"]),
        lambda it: it.peer("p", agent="p"),
        lambda it: it.send(1, sender=5),
        lambda it: it.sent(5),
        lambda it: it.context(sender=5),
        lambda it: it.context(attempt="1"),
        lambda it: it.crash_at("before_lunch").__enter__(),
        lambda it: it.during_run(5).__enter__(),
    ],
)
def test_what_helps_tests_refuses_them(call: Callable[[Any], object]) -> None:
    """A test that is written wrongly says so where it is wrong."""
    with Harness(Agent("x")) as harness, pytest.raises(InvalidArgument):
        call(harness)


def refusals(it: object, names: Iterable[str]) -> dict[str, str]:
    """Return how methods end that are given an object that is nothing for each parameter."""
    found = dict[str, str]()
    for name in names:
        call = inspect.unwrap(getattr(type(it), name))
        needed = [
            each.name
            for each in list(inspect.signature(call).parameters.values())[1:]
            if each.default is each.empty
            and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        for parameter in [each for each, rule in accepted(call).items() if rule is not None]:
            given = {each: GIVEN[each] for each in needed if each != parameter}
            try:
                declare = getattr(it, name)(**given, **{parameter: object()})
                if isinstance(it, Agent):
                    declare(handle)
                found[f"{name} {parameter}"] = "passed"
            except BaseException as error:  # noqa: BLE001 - also what ends a call to wait
                ours = isinstance(error, InvalidArgument | InvalidMessage)
                found[f"{name} {parameter}"] = "refused" if ours else repr(error)
    return found


@pytest.mark.parametrize("kind", [Context, Run])
def test_what_a_handler_is_given_refuses_them(box: Postbox, kind: type) -> None:
    """At the call that made the mistake: no call ends to wait with a value that cannot be kept."""
    served, found = Agent("r"), dict[str, str]()
    names = ("ask", "request", "send", "publish", "reply", "result", "gather", "dispatch")

    def serve_message(_: Any, ctx: Context) -> None:
        found.update(refusals(ctx, names))

    def serve_run(run: Run) -> None:
        found.update(refusals(run, names))

    if kind is Run:
        served.runs()(serve_run)
    else:
        served.on("t")(serve_message)
    with Postbox(box.file.path.with_name("r.db"), agent=served, start=False) as other:
        other.send("r", 1, type="t")
        other.run_until_idle()

    assert len(found) > 20
    assert {} == {call: how for call, how in found.items() if how != "refused"}


@pytest.mark.parametrize("name", ["on", "every", "runs"])
def test_declarations_refuse_them(name: str) -> None:
    """When the program is imported, not with the first message."""
    found = refusals(Agent("x"), [name])

    assert len(found) > 2
    assert {} == {call: how for call, how in found.items() if how != "refused"}
