"""Bodies of older versions are brought up before they are validated, wherever they are stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Context, Msg, Postbox
from onceward.errors import InvalidArgument, InvalidMessage, InvalidVersion
from onceward.message.body import decode, encode
from onceward.testing import Harness

ERRORS = "SELECT error FROM onceward_failed_attempts WHERE message_id = ?"
PROGRAM = """
import sys, threading
from onceward import Agent, Msg, Postbox

agent = Agent("a")
if sys.argv[2] == "old":
    class Customer(Msg, type="customer"):
        name: str
else:
    class Customer(Msg, type="customer", version=2):
        first: str
        last: str

    @Customer.upcast(from_version=1)
    def split(body):
        first, _, last = body.pop("name").partition(" ")
        return {**body, "first": first, "last": last}

@agent.on(Customer, attempts=1)
def handle(customer: Customer, ctx) -> None:
    ctx.tx.execute("INSERT INTO done VALUES (?, ?)", (sys.argv[2], customer.model_dump_json()))

with Postbox(sys.argv[1], agent=agent):
    print("open", flush=True)
    sys.stdin.read()
"""


class First(Msg, type="customer"):
    """A customer as it was at first."""

    name: str


class Second(Msg, type="customer", version=2):
    """The same with the name in two fields."""

    first: str
    last: str


class Customer(Msg, type="customer", version=3):
    """The same with a renamed field."""

    first: str
    family: str


@Second.upcast(from_version=1)
@Customer.upcast(from_version=1)
def split(body: dict[str, Any]) -> dict[str, Any]:
    """Split the name."""
    first, _, last = body.pop("name").partition(" ")
    return {**body, "first": first, "last": last}


@Customer.upcast(from_version=2)
def rename(body: dict[str, Any]) -> dict[str, Any]:
    """Rename a field."""
    return {**body, "family": body.pop("last")}


ADA = Customer(first="Ada", family="Lovelace")
BODIES = [First(name="Ada Lovelace"), Second(first="Ada", last="Lovelace"), ADA]


def opened(folder: Path, agent: Agent | str = "a") -> Postbox:
    """Return the agent's postbox, without engines."""
    name = agent if isinstance(agent, str) else agent.name
    return Postbox(folder / f"{name}.db", agent=agent, start=False)


def collecting(attempts: int | None = None) -> tuple[Agent, list[Any]]:
    """Return an agent that handles customers, and what it was called with."""
    agent, seen = Agent("a"), list[Any]()

    @agent.on(Customer, attempts=attempts)
    def handle(customer: Customer) -> None:
        seen.append(customer)

    return agent, seen


@pytest.mark.parametrize("body", BODIES)
def test_a_handler_gets_the_newest_version(tmp_path: Path, body: Msg) -> None:
    """From 1 through 2 to 3; the body in the file stays as it was sent."""
    agent, seen = collecting()
    with opened(tmp_path, agent) as box:
        sent = box.send("a", body)
        box.run_until_idle()

        assert [ADA] == seen
        kept = [each.body for each in box.history().messages if each.id == sent]
        assert [body.model_dump()] * 2 == kept  # as it was sent, and as it arrived


def test_the_version_is_in_the_media_type(tmp_path: Path) -> None:
    """Version 1 is the one without; a body of plain JSON has none."""
    assert [
        "application/json",
        "application/json;version=2",
        "application/json;version=3",
        "application/json",
    ] == [encode(each).media for each in (*BODIES, {"name": "x"})]


def test_messages_of_other_languages_have_version_one(tmp_path: Path) -> None:
    """They are sent without a class, by SQL for example."""
    agent, seen = collecting()
    with opened(tmp_path, agent) as box:
        with box.begin() as tx:
            tx.execute(
                "INSERT INTO onceward_send (recipient, type, body) VALUES ('a', 'customer', ?)",
                ('{"name": "Ada Lovelace"}',),
            )
        box.run_until_idle()

    assert [ADA] == seen


def test_a_newer_body_waits_for_a_newer_program(tmp_path: Path) -> None:
    """An older handler is not called, and the message is tried again as after a failure."""
    old, called = Agent("a"), list[Any]()

    @old.on(First)
    def handle(customer: First) -> None:
        called.append(customer)

    with Harness(old) as harness:
        sent = harness.send(ADA)
        harness.deliver()

        assert [] == called
        [(error,)] = harness.sql(ERRORS, (sent,))
        assert [("pending",)] == harness.sql("SELECT state FROM onceward_inbox")
        assert "version 3 of customer, and this program knows 1" in error


def test_a_dead_letter_is_replayed_by_the_newer_program(tmp_path: Path) -> None:
    """The frame keeps its version, so the replay brings it up."""
    old = Agent("a")

    @old.on("customer", attempts=1)
    def fail(body: dict[str, Any]) -> None:
        raise OSError("before the deployment")

    with opened(tmp_path, old) as box:
        sent = box.send("a", BODIES[0])
        box.run_until_idle()
    agent, seen = collecting()
    with opened(tmp_path, agent) as box:
        box.dead_letters.replay(sent)
        box.run_until_idle()

    assert [ADA] == seen


@pytest.mark.parametrize(
    "correction", [{"name": "Ada Lovelace"}, Second(first="Ada", last="Lovelace"), ADA]
)
def test_an_edited_dead_letter_keeps_its_version(tmp_path: Path, correction: object) -> None:
    """Plain JSON is of the version that it replaces; a class has its own."""
    agent, seen = collecting(attempts=1)
    with opened(tmp_path, agent) as box:
        sent = box.send("a", {"name": 3}, type="customer")
        box.run_until_idle()
        with pytest.raises(InvalidMessage):
            box.dead_letters.edit(sent, {"title": "Countess"})
        box.dead_letters.edit(sent, correction)
        box.dead_letters.replay(sent)
        box.run_until_idle()

    assert [ADA] == seen


def test_a_plain_correction_of_a_second_version_is_of_the_second(tmp_path: Path) -> None:
    """It is not brought up from the first."""
    agent, seen = Agent("a"), list[Any]()

    @agent.on(Customer, attempts=1)
    def handle(customer: Customer) -> None:
        if customer.first == "wrong":
            raise OSError("no")
        seen.append(customer)

    with opened(tmp_path, agent) as box:
        sent = box.send("a", Second(first="wrong", last="x"))
        box.run_until_idle()
        box.dead_letters.edit(sent, {"first": "Ada", "last": "Lovelace"})
        box.dead_letters.replay(sent)
        box.run_until_idle()

    assert [ADA] == seen


def older_step() -> Second:
    """Return what an older program stored."""
    return Second(first="Ada", last="Lovelace")


def newer_step() -> Customer:
    """Stand for the same step in the newer program; it is not called."""
    raise AssertionError("its result is stored")


def with_step(function: Callable[[], Any], seen: list[Any], *, fails: bool) -> Agent:
    """Return an agent whose handler makes a step."""
    agent = Agent("a")

    @agent.on("job", attempts=1)
    def handle(_: int, ctx: Context) -> None:
        seen.append(ctx.step(function, name="load"))
        if fails:
            raise OSError("killed")

    return agent


def test_the_result_of_a_step_is_brought_up(tmp_path: Path) -> None:
    """A handler that began in the older program is called again by the newer one."""
    seen = list[Any]()
    with opened(tmp_path, with_step(older_step, seen, fails=True)) as box:
        box.send("a", 1, type="job")
        box.run_until_idle()
    with opened(tmp_path, with_step(newer_step, seen, fails=False)) as box:
        [letter] = box.dead_letters.list()
        box.dead_letters.replay(letter.id)
        box.run_until_idle()

    assert [BODIES[1], ADA] == seen


def test_an_awaited_message_is_brought_up() -> None:
    """``ctx.wait`` returns the newest version of what an older sender sent."""
    agent, seen = Agent("a"), list[Any]()
    agent.waits(Customer)

    @agent.on("start")
    def start(_: int, ctx: Context) -> None:
        seen.append(ctx.wait(Customer, timeout="1d"))

    with Harness(agent) as harness:
        harness.send(1, type="start")
        harness.deliver()
        harness.send(BODIES[1])
        harness.deliver()

    assert [ADA] == seen


def test_replies_and_received_messages_are_brought_up(tmp_path: Path) -> None:
    """Wherever a class is named; an optional class is one too."""
    agent = Agent("b")

    @agent.on("find")
    def find(_: int) -> Second:
        return Second(first="Ada", last="Lovelace")

    with Postbox(tmp_path / "b.db", agent=agent), Postbox(tmp_path / "a.db", agent="a") as box:
        assert ADA == box.ask("b", 1, type="find", reply=Customer, timeout=30)
        assert ADA == box.ask("b", 1, type="find", reply=Customer | None, timeout=30)
        box.send("a", BODIES[0])
        message = box.receive(Customer, timeout=10)
        assert message is not None
        assert ADA == message.body


def test_a_stored_body_is_sent_with_its_version(tmp_path: Path) -> None:
    """By a schedule, and by a dead letter that is sent as new."""
    agent, seen = collecting()
    with opened(tmp_path, agent) as box:
        box.schedules.add("greet", every="1d", body=BODIES[1])
        box.schedules.run_now("greet")
        box.run_until_idle()
        assert [ADA] == seen
    with opened(tmp_path, "desk") as desk:
        desk.peers.add("away", "memory:away")
        sent = desk.send("away", BODIES[1], ttl=0.001)
        desk.run_until_idle()
        until(lambda: desk.run_until_idle() or desk.dead_letters.list())
        again = desk.dead_letters.replay(sent, as_new=True)

        [record] = [each for each in desk.history().messages if each.id == again]
        assert "application/json;version=2" == record.frame.datacontenttype


@pytest.fixture
def broken() -> type[Msg]:
    """Return a class whose function fails."""

    class Broken(Msg, type="broken", version=2):
        """A body that cannot be brought up."""

        n: int

    @Broken.upcast(from_version=1)
    def fail(body: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("missing")

    return Broken


def test_a_function_that_fails_is_a_failure_of_the_handler(broken: type[Msg]) -> None:
    """The message is tried again, and the error names function, type and version."""
    agent = Agent("a")
    agent.on(broken)(lambda _: None)

    with Harness(agent) as harness:
        sent = harness.send({"n": 1}, type="broken")
        harness.deliver()

        [(error,)] = harness.sql(ERRORS, (sent,))
    assert "'fail' could not bring version 1 of broken up: KeyError: 'missing'" in error


def test_a_body_that_a_reader_cannot_bring_up_is_a_dead_letter(
    tmp_path: Path, broken: type[Msg]
) -> None:
    """It is told like a body that does not fit."""
    with opened(tmp_path) as box:
        sent = box.send("a", {"n": 1}, type="broken")
        box.run_until_idle()
        assert box.receive(broken) is None

        [letter] = box.dead_letters.list()
        assert (sent, "rejected") == (letter.id, letter.reason)


def test_unions_name_one_class() -> None:
    """Of two classes it is unknown which one a body is, so it is read as it is."""
    old = {"name": "Ada Lovelace"}

    assert ADA == decode(old, None, Customer | None)
    assert ADA == decode(old, None, Annotated[Customer, "a note"])
    assert First(name="Ada Lovelace") == decode(old, None, First | Customer)
    assert old == decode(old, None, None, "application/json;version=9")
    assert [old] == decode([old], None, list[dict[str, str]], "application/json;version=9")
    with pytest.raises(InvalidVersion, match="has version 9 of customer"):
        decode(old, None, Customer, "application/json;version=9")


def test_tasks_have_versions(tmp_path: Path) -> None:
    """The class of their bodies is a message class like any other."""
    agent, seen = Agent("a"), list[Any]()

    @agent.task(version=2)
    def resize(path: str, width: int) -> None:
        seen.append((path, width))

    def add_width(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "width": 200}

    resize.model.upcast(from_version=1)(add_width)

    with opened(tmp_path, agent) as box:
        box.send("a", {"path": "a.png"}, type="resize")
        resize.send(box, "b.png", 3)
        box.run_until_idle()

    assert [("a.png", 200), ("b.png", 3)] == seen


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: First.upcast(from_version=1), r"First has version 1: class First\(Msg, version=…"),
        (lambda: Second.upcast(from_version=2), "from_version=2: Second has version 2"),
        (lambda: Second.upcast(from_version=1)(rename), "has a function for version 1"),
        (lambda: type("X", (Msg,), {}, version=0), "version=0 of X must be a number from 1"),
        (lambda: type("X", (Msg,), {}, version="2"), "version='2' of X must be a number from 1"),
    ],
)
def test_wrong_declarations_are_refused(declare: Callable[[], object], told: str) -> None:
    """By the class statement, or by the function that is declared."""
    with pytest.raises(InvalidArgument, match=told):
        declare()


def running(file: Path, version: str) -> Child:
    """Start a worker of a program."""
    return Child([*PYTHON, "-c", PROGRAM, file, version], "stdin", "stdout")


def test_workers_of_two_versions_share_a_file(tmp_path: Path) -> None:
    """The old program handles no newer body, however often it takes one, and loses none."""
    file = tmp_path / "a.db"
    with opened(tmp_path) as box:
        with box.begin() as tx:
            tx.execute("CREATE TABLE done (program TEXT, body TEXT)")
        for n in range(6):
            key = f"customer {n}"
            box.send("a", BODIES[n % 2], ordering_key=key)
        with running(file, "old") as old:
            assert "open" == old.hear()
            until(lambda: 3 == done(box))
            until(lambda: 3 == len(box.query("SELECT 1 FROM onceward_failed_attempts")))
            with running(file, "new") as new:
                assert "open" == new.hear()
                box.send("a", BODIES[0], ordering_key="a new one")
                until(lambda: 7 == done(box))

        programs = set(box.query("SELECT program, body FROM done"))
        assert 0 == len(box.dead_letters.list())
    newest = ("new", '{"first":"Ada","last":"Lovelace"}')
    assert newest in programs
    assert programs <= {newest, ("old", '{"name":"Ada Lovelace"}')}


def done(box: Postbox) -> int:
    """Return how many messages have been handled."""
    [(count,)] = box.query("SELECT count(*) FROM done")
    return int(count)
