"""The tools: durable, once for each key, with errors that say what to do next."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from tests.mcp.conftest import Refused, Serve, call
from tests.waiting import until

from mcp import Client
from onceward import Agent, AsyncMessage, AsyncPostbox, Context, Msg, Postbox, Reject, Run
from onceward.errors import Busy, InvalidArgument, OutcomeUnknown
from onceward.message.names import AcceptedType, AgentProfile
from onceward.ops.mcp import McpOptions
from onceward.ops.mcp.claims import OPEN
from onceward.testing import ManualClock

READING = [
    "check_inbox", "read_message", "conversation", "list_agents", "dead_letters", "why",
    "get_answer",
]  # fmt: skip
ALL = [
    *READING, "send_message", "ask", "publish", "claim_message", "extend_claim", "finish_message",
]  # fmt: skip


def outbox(home: Path) -> list[tuple[Any, ...]]:
    """Return recipient and body of each message that alice has sent."""
    with Postbox(home / "alice.db", start=False) as box:
        return box.query("SELECT recipient, body FROM onceward_outbox ORDER BY seq")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"read_only": True}, READING),
        ({"peers": frozenset({"bob"})}, [name for name in ALL if name != "publish"]),
    ],
)
def test_the_options_say_which_tools_there_are(
    serve: Serve, options: dict[str, Any], expected: list[str]
) -> None:
    """A read-only server offers none that changes; a list of peers leaves topics out."""

    async def main() -> list[str]:
        async with serve(**options) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert expected == anyio.run(main)


def test_a_model_understands_each_tool(serve: Serve) -> None:
    """Each has a short text, types for what goes in and out, and says whether it changes."""

    async def main() -> Any:
        async with serve() as client:
            return (await client.list_tools()).tools

    tools = anyio.run(main)
    untyped = [
        (tool.name, name)
        for tool in tools
        for name, schema in tool.input_schema["properties"].items()
        if not {"type", "anyOf", "enum", "$ref"} & schema.keys()
    ]

    assert [] == untyped
    assert [] == [tool.name for tool in tools if not 40 < len(tool.description or "") < 300]
    assert [False] * len(ALL) == [tool.input_schema["additionalProperties"] for tool in tools]
    assert READING == [tool.name for tool in tools if tool.annotations.read_only_hint]


def test_the_list_of_tools_is_short(serve: Serve) -> None:
    """A model reads it in every conversation: at most 2,500 tokens, of four characters each."""

    async def main() -> list[str]:
        async with serve() as client:
            tools = (await client.list_tools()).tools
            return [each.model_dump_json(by_alias=True, exclude_none=True) for each in tools]

    listed = anyio.run(main)

    assert len(ALL) == len(listed)
    assert sum(map(len, listed)) <= 4 * 2500


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"to": "bob", "body": "x", "urgent": True},
            "there is no argument 'urgent', only to,",
        ),
        ({"to": "bob"}, "argument 'body' is missing"),
        ({"to": "bob", "body": 1.5}, "argument 'body': input should be a valid string, or input"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    serve: Serve, home: Path, bob: Postbox, given: dict[str, Any], said: str
) -> None:
    """A call with one that the tool does not have does nothing: it would not have counted."""

    async def main() -> str:
        async with serve() as client:
            with pytest.raises(Refused) as caught:
                await call(client, "send_message", **given)
            return str(caught.value)

    text = anyio.run(main)

    assert text.startswith(f"send_message: {said}")
    assert text.endswith("Nothing was done. Correct the arguments, then call again.")
    assert [] == outbox(home)


def test_a_model_writes_to_a_handler_of_a_type(serve: Serve, home: Path) -> None:
    """list_agents says which types an agent accepts, with their schemas; ask takes the type."""

    class Invoice(Msg, type="invoice.created"):
        """What is to be paid."""

        cents: int

    clerk = Agent("clerk", description="Pays invoices.")

    @clerk.on(Invoice)
    def pay(invoice: Invoice) -> dict[str, int]:
        return {"paid": invoice.cents}

    async def main() -> tuple[Any, Any]:
        async with serve(start=True) as client:
            found = await call(client, "list_agents", search="invoice")
            [accepted] = found["agents"][0]["accepts"]
            asked = await call(
                client, "ask", to="clerk", type=accepted["type"], body={"cents": 7}, wait_seconds=60
            )
            return accepted, asked

    with Postbox(home / "clerk.db", agent=clerk):
        accepted, asked = anyio.run(main)

    assert ("invoice.created", {"cents"}) == (
        accepted["type"],
        set(accepted["body_schema"]["properties"]),
    )
    assert ("answered", '{"paid": 7}') == (asked["status"], asked["answer"])


class Order(Msg, type="order.placed"):
    """What is bought."""

    cents: int


def clerk_of(**options: Any) -> Agent:
    """Return an agent that handles orders."""
    clerk = Agent("clerk", **options)

    @clerk.on(Order)
    def take(order: Order) -> None:
        """Take an order."""

    return clerk


@pytest.mark.parametrize("tool", ["send_message", "ask"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "order.placed", "body": {"cent": 7}}, r"does not fit .*'cents' is a required"),
        ({"type": "order.placed", "body": {"cents": "many"}}, r"\$\.cents: 'many' is not of type"),
        ({"type": "order.placed", "body": "seven cents"}, r"\$: 'seven cents' is not of type"),
        ({"type": "order.paid", "body": {"cents": 7}}, r"no message of type 'order.paid', only"),
        ({"body": {"cents": 7}}, r"no message of type 'json', only 'order.placed'"),
    ],
)
def test_a_message_that_the_registry_excludes_is_refused(
    serve: Serve, home: Path, tool: str, given: dict[str, Any], told: str
) -> None:
    """A body that does not fit the listed schema, and a type that is not listed, are not sent."""

    async def main() -> None:
        async with serve() as client:
            with pytest.raises(Refused, match=told) as caught:
                await call(client, tool, to="clerk", **given)
            assert str(caught.value).endswith("search='clerk' for its types and schemas.")

    with Postbox(home / "clerk.db", agent=clerk_of(), start=False):
        anyio.run(main)

    assert [] == outbox(home)


def test_an_agent_that_leaves_other_types_waiting_accepts_them(serve: Serve, home: Path) -> None:
    """Its entry lists its types, and the pattern of all others."""

    async def main() -> list[str]:
        async with serve() as client:
            await call(client, "send_message", to="clerk", type="order.paid", body="x")
            found = await call(client, "list_agents", search="clerk")
            return [each["type"] for each in found["agents"][0]["accepts"]]

    with Postbox(home / "clerk.db", agent=clerk_of(unhandled="wait"), start=False):
        assert ["order.placed", "#"] == anyio.run(main)


HOSTILE: dict[str, Any] = {
    "slow pattern": {"type": "string", "pattern": "^(a+)+$"},
    "many ways": {
        "$ref": "#/$defs/n40",
        "$defs": {"n0": {"type": "string"}}
        | {f"n{n}": {"allOf": [{"$ref": f"#/$defs/n{n - 1}"}] * 2} for n in range(1, 41)},
    },
    "endless": {"$ref": "#"},
    "from elsewhere": {"$ref": "http://127.0.0.1:9/schema.json"},
    "no schema": {"type": 7},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_stops_no_message(
    serve: Serve, home: Path, bob: Postbox, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that cannot be applied in bounded steps leaves the decision to the recipient."""
    entry = AcceptedType("t", schema)
    monkeypatch.setattr(Agent, "profile", property(lambda _: AgentProfile(accepts=(entry,))))
    Postbox(home / "clerk.db", agent=clerk_of(), start=False).close()

    async def main() -> None:
        async with serve() as client:
            await call(client, "send_message", to="clerk", type="t", body=30 * "a" + "!")

    anyio.run(main)

    assert [("clerk", 30 * "a" + "!")] == outbox(home)


def test_a_message_that_was_rejected_is_listed(serve: Serve, home: Path) -> None:
    """What the recipient rejects although its entry did not tell is in the sender's check_inbox."""
    clerk = clerk_of()

    @clerk.on("paid")
    def refuse(body: object) -> None:
        raise Reject("paid before")

    async def main() -> tuple[str, Any]:
        async with serve(start=True) as client:
            sent = await call(client, "send_message", to="clerk", type="paid", body="x")
            found: Any = {"failed": []}
            with anyio.fail_after(60):
                while not found["failed"]:
                    found = await call(client, "check_inbox", wait_seconds=0.1)
            return sent["message_id"], found["failed"]

    with Postbox(home / "clerk.db", agent=clerk):
        sent, failed = anyio.run(main)

    [told] = failed
    assert (sent, "clerk", "paid", "rejected") == tuple(
        told[each] for each in ("message_id", "recipient", "type", "reason")
    )


def test_a_model_reaches_the_handlers_of_the_tutorial(serve: Serve, home: Path) -> None:
    """What the tutorial declares is found, asked with its type, and writes its row."""
    page = Path(__file__).parents[2] / "docs" / "tutorial" / "2-two-agents.md"
    shown = re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "tutorial"}
    for block in shown[:2]:  # the messages, and the agent with its handler
        exec(block, names)  # noqa: S102 - our own page

    async def main() -> tuple[Any, Any]:
        async with serve(start=True) as client:
            found = await call(client, "list_agents", search="warehouse")
            [accepted] = found["agents"][0]["accepts"]
            body = {"id": 7, "item": "lamp"}
            return accepted["type"], await call(
                client, "ask", to="warehouse", type=accepted["type"], body=body, wait_seconds=60
            )

    with Postbox(home / "warehouse.db", agent=names["warehouse"]) as box:
        with box.begin() as tx:
            tx.execute("CREATE TABLE shipment (id INTEGER, item TEXT)")
        accepted, asked = anyio.run(main)
        rows = box.query("SELECT id, item FROM shipment")

    assert ("shop.order", "answered", '{"id": 7}') == (accepted, asked["status"], asked["answer"])
    assert [(7, "lamp")] == rows


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_repeated_call_sends_once(serve: Serve, home: Path, bob: Postbox, mode: str) -> None:
    """By a key of the model, or by the id of the call that the client puts into _meta."""

    async def main() -> list[str]:
        async with serve(mode) as client:
            ids = [
                (await call(client, "send_message", to="bob", body={"n": 1}, key="k"))["message_id"]
                for _ in range(2)
            ]
            for _ in range(2):
                given = {"onceward/callId": "toolu_1"}
                sent = await call(client, "send_message", to="bob", body="two", meta=given)
                ids.append(sent["message_id"])
            ids += [
                (await call(client, "send_message", to="bob", body="three"))["message_id"]
                for _ in range(2)
            ]
            return ids

    one, again, two, once_more, three, four = anyio.run(main)

    assert (one, two) == (again, once_more)
    assert three != four
    assert [("bob", '{"n":1}'), ("bob", "two"), ("bob", "three"), ("bob", "three")] == outbox(home)


def test_a_key_stands_for_one_message(serve: Serve, home: Path, bob: Postbox) -> None:
    """The same key with another body is refused, with what to do."""

    async def main() -> None:
        async with serve() as client:
            await call(client, "send_message", to="bob", body="one", key="k")
            with pytest.raises(Refused, match=r"key 'k' .*Nothing was sent. Use a new key"):
                await call(client, "send_message", to="bob", body="other", key="k")

    anyio.run(main)

    assert [("bob", "one")] == outbox(home)


def test_a_key_says_nothing_to_the_recipient(serve: Serve, home: Path, bob: Postbox) -> None:
    """A frame bears a digest of it: the name of a connection stays with us."""

    async def main() -> None:
        async with serve() as client:
            await call(client, "send_message", to="bob", body="one", key="my secret plan")

    anyio.run(main)
    with Postbox(home / "alice.db", start=False) as box:
        [(frame,)] = box.query("SELECT frame FROM onceward_outbox")

    assert ("secret" in frame, '"idempotencykey":"mcp-' in frame) == (False, True)


def test_an_unknown_recipient_names_the_cure(serve: Serve, home: Path) -> None:
    """Nothing is stored, and the model is told to list agents."""

    async def main() -> None:
        async with serve() as client:
            with pytest.raises(Refused, match=r"nobody.*Nothing was sent. Call list_agents"):
                await call(client, "send_message", to="nobody", body="x")

    anyio.run(main)

    assert [] == outbox(home)


def test_a_paused_agent_sends_nothing(serve: Serve, home: Path, bob: Postbox) -> None:
    """The model is told that only the user resumes it."""
    with Postbox(home / "alice.db", start=False) as box:
        box.file.pause()

    async def main() -> None:
        async with serve() as client:
            with pytest.raises(Refused, match="Only the user can resume"):
                await call(client, "send_message", to="bob", body="x")

    anyio.run(main)


def test_agents_are_listed_with_their_words(serve: Serve, home: Path) -> None:
    """Name, description and capabilities; a page says where the next one begins."""
    for name in ("carol", "dave"):
        with Postbox(home / f"{name}.db", agent=name, start=False) as box:
            box.agents.register(description=f"I am {name}\u202e", capabilities=["translate"])

    async def main() -> Any:
        async with serve() as client:
            first = await call(client, "list_agents", limit=1)
            rest = await call(client, "list_agents", after=first["next_after"])
            return first["agents"] + rest["agents"], rest["next_after"]

    found, after = anyio.run(main)

    assert ["carol", "dave"] == [each["name"] for each in found]
    assert "I am carol\\u{202e}" == found[0]["description"]
    assert (["translate"], None) == (found[1]["capabilities"], after)


def test_a_topic_reaches_its_subscribers_once(serve: Serve, home: Path, bob: Postbox) -> None:
    """A repeat of the call returns the same ids."""
    bob.agents.subscribe("build.#")

    async def main() -> Any:
        async with serve() as client:
            return [
                await call(client, "publish", topic="build.done", body="green", key="b")
                for _ in range(2)
            ]

    first, second = anyio.run(main)

    assert (1, first) == (len(first["message_ids"]), second)
    assert [("bob", "green")] == outbox(home)


def test_a_question_has_an_answer_or_a_ticket(serve: Serve, home: Path, bob: Postbox) -> None:
    """A ticket that was returned while the answer was missing returns it later."""

    async def main() -> Any:
        async with serve() as client:
            given = {"to": "bob", "body": "why?", "wait_seconds": 0, "key": "q"}
            asked = await call(client, "ask", **given)
            assert asked == await call(client, "ask", **given)
            again = await call(client, "get_answer", ticket=asked["ticket"])
            await anyio.to_thread.run_sync(answer)
            later = await call(client, "get_answer", ticket=asked["ticket"], wait_seconds=60)
            return asked, again, later

    def answer() -> None:
        with Postbox(home / "alice.db", start=False) as box:
            box.run_until_idle()
        message = bob.receive(timeout=60)
        assert message is not None
        message.reply({"because": 1})
        message.ack()

    asked, again, later = anyio.run(main)

    assert ("waiting", "waiting", "answered") == tuple(
        each["status"] for each in (asked, again, later)
    )
    assert '{"because": 1}' == later["answer"]


def test_an_unknown_ticket_is_refused(serve: Serve) -> None:
    """With what to do."""

    async def main() -> None:
        async with serve() as client:
            with pytest.raises(Refused, match=r"no message nothing here.*Correct the argument"):
                await call(client, "get_answer", ticket="nothing")

    anyio.run(main)


def test_a_long_question_reports_progress(serve: Serve, bob: Postbox) -> None:
    """A client that asks for progress hears that the question still waits."""
    heard: list[tuple[float, float | None, str | None]] = []

    async def main() -> None:
        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append((progress, total, message))

        async with serve() as client:
            given = {"to": "bob", "body": "why?", "wait_seconds": 2.5}
            await client.call_tool("ask", given, progress_callback=hear)

    anyio.run(main)

    assert [2.5] == [total for _, total, _ in heard]
    assert "no answer yet" in str(heard[0][2])


def test_progress_tells_how_far_the_recipient_is(serve: Serve, home: Path) -> None:
    """Steps that are done, output and what the handler says itself, while a client waits."""
    heard, bob, go_on = list[str](), Agent("bob"), Event()

    @bob.on("question")
    def answer(_: str, ctx: Context) -> str:
        ctx.progress("half way")
        ctx.step(int, name="plan")
        ctx.step(int, name="search")
        stream = ctx.stream()
        while not go_on.wait(0.05):
            stream.append("more")
        return "42"

    async def main() -> Any:
        async def hear(_: float, __: float | None, message: str | None) -> None:
            heard.append(str(message))
            if "output" in heard[-1]:
                go_on.set()

        async with serve(start=True) as client:
            given = {"to": "bob", "body": "why?", "type": "question", "wait_seconds": 30}
            return await client.call_tool("ask", given, progress_callback=hear)

    with Postbox(home / "bob.db", agent=bob):
        try:
            found = anyio.run(main)
        finally:
            go_on.set()

    told = r"half way; 2 steps done, the last is search; \d+ chunks of output, \d+ bytes; no answer"
    assert re.search(told, heard[-1])
    assert "42" == found.structured_content["answer"]


def test_each_question_of_a_run_is_told_how_far_it_is(serve: Serve, home: Path) -> None:
    """Also one that is not the first message of its run, with whose record steps are stored."""
    bob = Agent("bob")

    @bob.runs("talk", mode="collect", debounce=0)
    def turn(run: Run) -> None:
        run.step(int, name="plan")
        run.sleep("1h")

    heard = list[str]()

    async def hear(_: float, __: float | None, message: str | None) -> None:
        heard.append(str(message))

    with Postbox(home / "bob.db", agent=bob, start=False) as box:

        def work() -> None:
            until(lambda: len(box.query("SELECT 1 FROM onceward_inbox")) == 2)
            box.run_until_idle()

        async def main() -> None:
            async with serve(start=True) as client:
                talk = {"to": "bob", "body": "why?", "session": "talk"}
                await call(client, "send_message", **talk)
                ticket = (await call(client, "ask", **talk, wait_seconds=0))["ticket"]
                await anyio.to_thread.run_sync(work)
                given = {"ticket": ticket, "wait_seconds": 2.5}
                await client.call_tool("get_answer", given, progress_callback=hear)

        anyio.run(main)

    assert "1 steps done, the last is plan; sleep is waiting" in heard[0]


async def claimed(client: Client, **given: Any) -> Any:
    """Claim a message and return it."""
    return (await call(client, "claim_message", **given))["message"]


def test_a_reply_and_the_end_are_one_commit(serve: Serve, home: Path, bob: Postbox) -> None:
    """A second call changes nothing and says so; another outcome is refused."""
    ticket = bob.request("alice", {"page": 7})
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            message = await claimed(client)
            ends = [
                await call(client, "finish_message", claim=message["claim"], reply={"ok": True})
                for _ in range(2)
            ]
            with pytest.raises(Refused, match=r"already finished as done. Nothing was changed"):
                await call(client, "finish_message", claim=message["claim"], outcome="retry")
            return message, ends, (await call(client, "check_inbox"))["messages"]

    message, (first, second), left = anyio.run(main)

    assert ('{"page": 7}', 1, True) == (message["body"], message["attempt"], message["wants_reply"])
    assert (first | {"repeated": True}, []) == (second, left)
    assert [("bob", '{"ok":true}')] == outbox(home)
    with Postbox(home / "alice.db", start=False) as box:
        box.run_until_idle()
    assert {"ok": True} == bob.result(ticket, reply=dict, timeout=60)


def test_a_reply_is_not_sent_without_the_end(
    serve: Serve, home: Path, bob: Postbox, clock: ManualClock
) -> None:
    """Where the reply is refused the claim stays open; where the lease is over nothing is sent."""
    bob.send("alice", "x")
    bob.flush()

    async def main() -> None:
        async with serve() as client:
            claim = (await claimed(client, lease_seconds=60))["claim"]
            with pytest.raises(Refused, match="Send a shorter body"):
                await call(client, "finish_message", claim=claim, reply="x" * 2_000_000)
            clock.advance(61)
            assert await claimed(client) is not None
            with pytest.raises(Refused, match="Call claim_message"):
                await call(client, "finish_message", claim=claim, reply="late")

    anyio.run(main)

    assert [] == outbox(home)


def test_a_commit_that_raised_is_sent_again(
    serve: Serve, home: Path, bob: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same key: the message that was stored after all is not there twice."""
    send, tries = AsyncPostbox.send, list[str]()

    async def raising(box: AsyncPostbox, to: str, body: object, *, key: str, **_: Any) -> str:
        sent = await send(box, to, body, key=key)
        tries.append(sent)
        if len(tries) == 1:
            raise OutcomeUnknown("COMMIT raised", (sent,))
        return sent

    monkeypatch.setattr(AsyncPostbox, "send", raising)

    async def main() -> Any:
        async with serve() as client:
            return (await call(client, "send_message", to="bob", body="x"))["message_id"]

    assert [anyio.run(main)] * 2 == tries
    assert [("bob", "x")] == outbox(home)


def test_agents_of_other_machines_are_named(serve: Serve, home: Path, bob: Postbox) -> None:
    """They are in no registry; the file knows their urls."""
    with Postbox(home / "alice.db", start=False) as box:
        box.peers.add("carol", "http://127.0.0.1:1")

    async def main() -> Any:
        async with serve() as client:
            return await call(client, "list_agents")

    found = anyio.run(main)

    assert (["bob"], ["carol"]) == ([each["name"] for each in found["agents"]], found["elsewhere"])


def test_the_end_of_a_long_conversation_is_shown(serve: Serve, bob: Postbox) -> None:
    """Its newest messages, oldest first, with a word that there are more; a short one is whole."""
    root = bob.send("alice", "root")
    bob.send_many([("alice", f"m{number}") for number in range(9)], correlation_id=root)
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            given = {"message_id": root}
            return [
                await call(client, "conversation", limit=limit, **given) for limit in (3, 9, 10)
            ]

    end, most, whole = anyio.run(main)

    assert (["m6", "m7", "m8"], True) == ([each["body"] for each in end["messages"]], end["more"])
    assert ("m0", True) == (most["messages"][0]["body"], most["more"])
    assert ("root", False) == (whole["messages"][0]["body"], whole["more"])


def test_two_calls_at_once_end_a_claim_once(serve: Serve, home: Path, bob: Postbox) -> None:
    """One of them settles; the other one says that it was done before."""
    bob.send("alice", "x")
    bob.flush()
    ends: list[Any] = []

    async def main() -> None:
        async with serve() as client:
            claim = (await claimed(client))["claim"]

            async def finish() -> None:
                ends.append(await call(client, "finish_message", claim=claim, reply="y"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(finish)
                tasks.start_soon(finish)

    anyio.run(main)

    assert [False, True] == sorted(end["repeated"] for end in ends)
    assert [("bob", "y")] == outbox(home)


def test_a_claim_is_repeated_by_its_key(serve: Serve, bob: Postbox) -> None:
    """A model that did not hear the answer gets the same message, not the next one."""
    bob.send_many([("alice", 1), ("alice", 2)])
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            return [(await claimed(client, key="c"))["claim"] for _ in range(2)]

    first, second = anyio.run(main)

    assert first == second


def test_an_error_names_no_cure_of_a_program(serve: Serve, bob: Postbox) -> None:
    """What a model reads is what happened and which tool helps, with the key that it gave."""
    del bob

    async def said() -> list[str]:
        async with serve() as client:
            await call(client, "send_message", to="bob", body="x", key="mine")
            texts = []
            for given in (
                {"to": "nobody", "body": "x"},
                {"to": "bob", "body": "y", "key": "mine"},
                {"to": "bob", "body": "x" * 2_000_000},
            ):
                with pytest.raises(Refused) as caught:
                    await call(client, "send_message", **given)
                texts.append(str(caught.value))
        return texts

    unknown, other, large = anyio.run(said)
    assert unknown.endswith(
        "there is no agent 'nobody'. Nothing was sent. Call list_agents for the names that exist."
    )
    assert "key 'mine' to bob already belongs to message" in other
    assert other.endswith("with another body. Nothing was sent. Use a new key for another message.")
    assert "raise the limit" not in large
    assert large.endswith("Send a shorter body, or say where the content is.")


def test_a_claim_survives_the_server(serve: Serve, home: Path, bob: Postbox) -> None:
    """finish_message of a later server ends it with a reply; once, and its lease is proved."""
    ticket = bob.request("alice", "q")
    bob.flush()

    async def claims() -> list[str]:
        async with serve() as client:
            claims = [(await claimed(client))["claim"]]
        async with serve() as client:
            assert await claimed(client) is None
            await call(client, "extend_claim", claim=claims[0], lease_seconds=60)
            ended = await call(client, "finish_message", claim=claims[0], reply="a")
            assert "done" == ended["outcome"]
        async with serve() as client:
            with pytest.raises(
                Refused, match=r"finished, or its lease ended\. Nothing was changed"
            ):
                await call(client, "finish_message", claim=claims[0], reply="b")
            with pytest.raises(Refused, match="there is no such open claim"):
                await call(client, "finish_message", claim="no-such-claim")
        return claims

    anyio.run(claims)
    with Postbox(home / "alice.db", start=False) as alice:
        alice.run_until_idle()
    assert "a" == bob.result(ticket, reply=str, timeout=30)


def test_calls_with_one_key_at_once_claim_one_message(serve: Serve, bob: Postbox) -> None:
    """A client that repeats a call before its answer holds one message, not two."""
    bob.send_many([("alice", 1), ("alice", 2)])
    bob.flush()
    found = list[str]()

    async def main() -> None:
        async with serve() as client, anyio.create_task_group() as tasks:

            async def claim() -> None:
                found.append((await claimed(client, key="c"))["claim"])

            tasks.start_soon(claim)
            tasks.start_soon(claim)

    anyio.run(main)

    assert [found[0]] * 2 == found


def test_a_key_whose_lease_is_over_claims_anew(serve: Serve, bob: Postbox) -> None:
    """A repeat is given no claim that another reader may have by now."""
    bob.send("alice", "x")
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            return [await claimed(client, key="c", lease_seconds=each) for each in (1e-6, 60)]

    first, second = anyio.run(main)

    assert first["claim"] != second["claim"]
    assert (first["message_id"], 2) == (second["message_id"], second["attempt"])


def test_a_claim_that_failed_takes_no_place(
    serve: Serve, bob: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was leased, and not claimed, comes again and holds up no claim."""
    for session in ("one", "two"):
        bob.session(session).send("alice", 1)
    bob.flush()
    monkeypatch.setattr("onceward.ops.mcp.claims.OPEN", 1)

    async def main() -> Any:
        async with serve() as client:
            with monkeypatch.context() as failing:
                failing.setattr(AsyncMessage, "extend", AsyncMock(side_effect=Busy("held")))
                with pytest.raises(Refused, match="held"):
                    await claimed(client)
            return await claimed(client)

    assert anyio.run(main) is not None


def test_a_message_comes_again_after_its_lease(
    serve: Serve, bob: Postbox, clock: ManualClock
) -> None:
    """The late end of the first claim changes nothing and names the next call."""
    bob.send("alice", "x")
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            late = await claimed(client, lease_seconds=60)
            none = await claimed(client)
            clock.advance(61)
            taken = await claimed(client)
            with pytest.raises(Refused, match=r"Nothing was changed. Call claim_message"):
                await call(client, "finish_message", claim=late["claim"])
            await call(client, "finish_message", claim=taken["claim"])
            return late, none, taken

    late, none, taken = anyio.run(main)

    assert (None, late["message_id"], 2) == (none, taken["message_id"], taken["attempt"])


def test_a_lease_is_extended(serve: Serve, bob: Postbox, clock: ManualClock) -> None:
    """The message stays claimed for the time that was asked for, from then on."""
    bob.send("alice", "x")
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            claim = (await claimed(client, lease_seconds=60))["claim"]
            clock.advance(50)
            await call(client, "extend_claim", claim=claim, lease_seconds=60)
            clock.advance(50)
            return await claimed(client), await call(client, "finish_message", claim=claim)

    none, end = anyio.run(main)

    assert (None, "done") == (none, end["outcome"])


def test_a_rejected_message_is_a_dead_letter(serve: Serve, bob: Postbox) -> None:
    """With the reason that was given; a message that is put back can be claimed again."""
    bob.send("alice", "x")
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            first = (await claimed(client))["claim"]
            await call(
                client, "finish_message", claim=first, outcome="retry", retry_after_seconds=0
            )
            second = (await claimed(client))["claim"]
            given = {"outcome": "reject", "reason": "no such page"}
            await call(client, "finish_message", claim=second, **given)
            return (await call(client, "dead_letters"))["messages"]

    [dead] = anyio.run(main)

    assert ("bob", "rejected", "no such page", "x") == tuple(
        dead[name] for name in ("sender", "reason", "last_error", "body")
    )


def test_a_claim_that_is_none_is_refused(serve: Serve) -> None:
    """With the call that helps."""

    async def main() -> None:
        async with serve() as client:
            with pytest.raises(Refused, match="Call claim_message"):
                await call(client, "finish_message", claim="0199.abc")

    anyio.run(main)


def test_a_model_holds_so_many_claims(serve: Serve, bob: Postbox) -> None:
    """One that claims and never ends is stopped; the others stay in the inbox."""
    for number in range(OPEN + 1):
        bob.session(f"s{number}").send("alice", number)
    bob.flush()

    async def main() -> None:
        async with serve() as client:
            for _ in range(OPEN):
                assert await claimed(client) is not None
            with pytest.raises(Refused, match="Finish some of them first"):
                await claimed(client)

    anyio.run(main)


NASTY: list[Any] = [
    "", "a" * 300, "\x00", "\ud800", None, -1, 1e308, float("inf"), 2**70, [], {}, "../x", "_x",
]  # fmt: skip


@pytest.mark.parametrize("value", NASTY, ids=lambda value: ascii(value)[:12])
def test_no_argument_breaks_a_tool(serve: Serve, bob: Postbox, value: Any) -> None:
    """A value that is none is refused in words, whichever argument it is given as."""

    async def main() -> list[str]:
        silent = list[str]()
        async with serve() as client:
            for tool in (await client.list_tools()).tools:
                for name in tool.input_schema["properties"]:
                    given: dict[str, Any] = {
                        "to": "bob", "body": "x", "message_id": "x", "ticket": "x", "claim": "x",
                        "topic": "a.b", "lease_seconds": 5, "wait_seconds": 0,
                    }  # fmt: skip
                    known = tool.input_schema["properties"].keys() & given.keys()
                    arguments = {each: given[each] for each in known} | {name: value}
                    answer = await client.call_tool(tool.name, arguments)
                    text = getattr(answer.content[0], "text", "")
                    if text == f"Error executing tool {tool.name}":
                        silent.append(f"{tool.name}({name}=)")
        return silent

    assert [] == anyio.run(main)


@pytest.mark.parametrize(
    "options", [{"limit": "0/m"}, {"lease": "0s"}, {"peers": frozenset[str]()}]
)
def test_options_that_allow_nothing_are_refused(options: dict[str, Any]) -> None:
    """When the server is made."""
    with pytest.raises(InvalidArgument):
        McpOptions(**options)


def test_a_model_learns_why_a_message_waits(serve: Serve, home: Path, bob: Postbox) -> None:
    """From the file of the recipient, too; without an id it learns what holds the agent back."""

    async def main() -> tuple[Any, Any, str]:
        async with serve() as client:
            with Postbox(home / "alice.db", start=False) as alice:
                sent = alice.send("carol", "x", type="note")
                alice.run_until_idle()
                alice.file.pause()
            one = await call(client, "why", message_id=sent)
            own = await call(client, "why")
            with pytest.raises(Refused) as caught:
                await call(client, "why", message_id="none")
            return one, own, str(caught.value)

    with Postbox(home / "carol.db", agent="carol", start=False):
        one, own, refused = anyio.run(main)

    [reason], [paused] = one["reasons"], own["reasons"]
    assert "Next in its lane: it waits for a free worker of carol" == reason["text"]
    assert ("act", "onceward resume --agent alice") == (paused["level"], paused["cure"])
    assert paused["text"].startswith("alice was paused ")
    assert "there is no message none in this file. " in refused
    assert bob.agent == "bob"
