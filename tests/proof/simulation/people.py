"""Callers of a simulated world: they send in all ways and remember what they were told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tests.proof.simulation.history import Sent, Word
from tests.proof.simulation.process import Died, Fatal, Process
from tests.proof.simulation.thinking import GO, Thinking
from tests.proof.simulation.world import Simulation

from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.core.send.compose import named_id
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.message.handler_options import PLAIN_RULES, HandlerRules
from onceward.message.options import FrameHeaders

LANES: Final = ("", "", "red", "blue")
PRIORITIES: Final = ("normal", "normal", "normal", "urgent", "low")
DEEDS: Final = (
    "note",
    "note",
    "note",
    "note",
    "fail",
    "later",
    "reply",
    "forward",
    "reject",
    "drop",
    "break",
)
RAISED: Final[dict[str, BaseException]] = {
    "break": ZeroDivisionError("break"),
    "reject": Reject("reject"),
    "drop": Drop(),
    "die": Fatal("die"),
}
"""Deeds that end in the same way at every attempt."""
SPANS: Final[dict[str, tuple[Any, ...]]] = {
    "delay": (0.0, 2.0, 15.0),
    "ttl": (1.0, 30.0),
    "key": ("k1", "k2"),
}
SELDOM: Final = 12
TO_ITSELF, DEADLY = 0.2, 0.04
"""Shares of messages, in worlds with engines, to the sender itself and that kill their process."""
THOUGHTFUL: Final = 0.5
"""Share of messages that are handled in steps, in worlds where handlers take some."""
SOME: Final = 4
RETRIES: Final = 2
"""In one world of so many, callers send again instead of asking; seeds keep their stories."""
INSERT: Final = """
INSERT INTO onceward_send (recipient, type, body, id, ordering_key, priority)
VALUES (?, 'json', ?, ?, ?, ?)
"""


class AskedMessage(NamedTuple):
    """A message as its sender remembers it, with its body and its options."""

    sent: Sent
    body: dict[str, Any]
    options: dict[str, Any]


class _Undone(Exception):
    """Undoes a block on purpose."""


def send_from(world: Simulation, process: Process, *, certain: bool = True) -> None:
    """Send from a process; a promise by a copy of the file does not count."""
    ask_again(world, process)
    messages = [_message(world, process.agent) for _ in range(world.rng.choice((1, 1, 1, 2, 3)))]
    word, ids = _told(world, process, messages)
    certain &= process not in world.clones  # its file may have been given up meanwhile
    for message, message_id in zip(messages, ids, strict=True):
        sent = message.sent
        sent.ordered &= certain
        sent.word = (
            "maybe"
            if word == "promised" and not certain
            else word
            if message_id == sent.id
            else "denied"
        )
        world.note("sent", sent.sender, sent.recipient, sent.id, sent.word)
        world.history.send(sent)


def send_group(
    world: Simulation, process: Process, recipient: str, spans: Sequence[dict[str, Any]]
) -> list[Sent]:
    """Send messages with such options to one recipient; return them as they were promised."""
    messages = [_message(world, process.agent, keyed=False) for _ in spans]
    for message, options in zip(messages, spans, strict=True):
        sent = message.sent
        sent.recipient, sent.ordered, sent.mortal = recipient, False, "ttl" in options
        message.body["do"] = "note"
        for option in SPANS:
            message.options.pop(option, None)
        message.options.update(options)
    word, ids = _told(world, process, messages)
    for message, known in zip(messages, ids, strict=True):
        message.sent.word = word if known == message.sent.id else "denied"
        world.history.send(message.sent)
    return [message.sent for message in messages]


def ask_again(world: Simulation, process: Process | None) -> None:
    """Ask the file for the outcome of sends whose outcome is unknown."""
    asked: dict[str, AskedMessage] = (
        {}
        if process is None or process in world.clones
        else world.history.questions.get(process.agent, {})
    )
    if process is None or not asked:
        return
    if world.seed % SOME == RETRIES and world.luck.randrange(2):
        _send_again(world, process, asked)
        return
    try:
        said = world.enter(process, lambda: [process.box.state(message_id) for message_id in asked])
    except (OncewardError, Died):
        return
    for message_id, state in zip(asked, said, strict=True):
        world.history.resolved(message_id, state, remembers=world.weather.remembers)
    asked.clear()


def _send_again(world: Simulation, process: Process, asked: dict[str, AskedMessage]) -> None:
    """Send messages of unknown outcome again under the same ids; that is always safe."""
    for sent, body, options in list(asked.values()):
        known = options | {"message_id": sent.id}
        try:
            said = world.enter(
                process,
                lambda sent=sent, body=body, known=known: process.box.send(  # type: ignore[misc]
                    sent.recipient, body, **known
                ),
            )
        except (OncewardError, Died) as error:
            world.note("not sent again", process.agent, sent.id, type(error).__name__)
            return
        world.note("sent again", process.agent, sent.id, said)
        world.history.reached["retry after unknown outcome"] += 1
        world.history.resolved(
            sent.id, "there" if said == sent.id else "absent", remembers=world.weather.remembers
        )
        sent.ordered, sent.place = (
            False,
            world.place(),
        )  # what is promised only now is in no backup of before
        asked.pop(sent.id, None)


def _message(world: Simulation, name: str, *, keyed: bool = True) -> AskedMessage:
    rng, number = world.rng, world.place()
    recipient = rng.choice([other for other in world.agents if other != name] or [name])
    if world.engines and world.luck.random() < TO_ITSELF:
        recipient = name
    lane, priority = rng.choice(LANES), rng.choice(PRIORITIES)
    options: dict[str, Any] = {"priority": priority} | ({"ordering_key": lane} if lane else {})
    options |= {
        option: rng.choice(values) for option, values in SPANS.items() if not rng.randrange(SELDOM)
    }
    body = {"n": 0 if "key" in options else number, "do": rng.choice(DEEDS)}
    if world.engines and world.luck.random() < DEADLY:
        body["do"] = "die"
    elif world.thinking is not None and world.luck.random() < THOUGHTFUL:
        body["do"] = "think"
    message_id = world.mint.new(name) if rng.randrange(6) else f"own-{number}"
    if message_id.startswith("own") or not rng.randrange(4):
        options["message_id"] = message_id
    elif keyed and "key" in options:
        message_id = _id_of_key(name, recipient, options["key"])
    else:
        world.mint.next.setdefault(name, []).append(message_id)
    world.history.minted.add(message_id)
    place = (lane or "default", priority)
    sent = Sent(
        message_id,
        name,
        recipient,
        place,
        number,
        "maybe",
        ordered=not options.keys() & {"delay", "key"},
        mortal="ttl" in options,
    )
    if not world.weather.remembers and ("ttl" in options or body["do"] == "drop"):
        sent.excused = "its end was forgotten"
    return AskedMessage(sent, body, options)


def _id_of_key(sender: str, recipient: str, key: str) -> str:
    """Return the id of the message with a key."""
    of = FrameHeaders(sender, recipient, "json", key=key)
    return named_id(of, recipient, None)


def _told(
    world: Simulation, process: Process, messages: list[AskedMessage]
) -> tuple[Word, list[str]]:
    """Send; return the caller's outcome and the ids; an unknown outcome is asked for later."""
    ids = [message.sent.id for message in messages]
    try:
        return "promised", world.enter(process, lambda: _send(world, process, messages))
    except (Died, OutcomeUnknown) as error:
        world.history.reached[f"send ended by {type(error).__name__}"] += 1
        if process not in world.clones:
            world.history.questions.setdefault(process.agent, {}).update(
                zip(ids, messages, strict=True)
            )
        return "maybe", ids
    except (OncewardError, _Undone) as error:
        world.note("refused", process.agent, type(error).__name__)
        world.history.reached[f"send refused by {type(error).__name__}"] += 1
        return "denied", ids
    finally:
        world.mint.next.pop(process.agent, None)


def _send(world: Simulation, process: Process, messages: list[AskedMessage]) -> list[str]:
    box, (first, *others) = process.box, messages
    if others or not world.rng.randrange(4):
        with box.begin() as tx:
            ids = [tx.send(each.sent.recipient, each.body, **each.options) for each in messages]
            if not world.rng.randrange(6):
                raise _Undone
        return ids
    sent, body, options = first
    match world.rng.randrange(8):
        case 0:
            return [box.request(sent.recipient, body, timeout=20.0, **options).id]
        case 1 if not options.keys() & SPANS.keys():
            with box.begin() as tx:
                tx.execute(
                    INSERT,
                    (
                        sent.recipient,
                        json.dumps(body),
                        sent.id,
                        options.get("ordering_key"),
                        options["priority"],
                    ),
                )
            return [sent.id]
    return [box.send(sent.recipient, body, **options)]


# -- the handlers -------------------------------------------------------------------------------


def people(
    *names: str,
    rules: HandlerRules = PLAIN_RULES,
    thinking: Thinking | None = None,
    results: int = 1,
) -> list[Agent]:
    """
    Return agents that do what their messages say: note, fail, give up, answer, pass on.

    *rules* are the options of their handlers; of a batch each message is handled in turn. What is
    passed on is passed on in so many *results*.
    """
    found = [_person(name, names, thinking, results) for name in names]
    for agent in found:
        agent.handlers = [replace(handler, rules=rules) for handler in agent.handlers]
    return found


def _person(name: str, names: tuple[str, ...], thinking: Thinking | None, results: int) -> Agent:
    agent = Agent(name)
    if thinking is not None:
        agent.waits(GO)
    follower = names[(names.index(name) + 1) % len(names)]

    @agent.on("json")
    def do(body: dict[str, Any], ctx: Context) -> None:
        deed, first = _deed(body, results), ctx.message.attempt == 1
        if deed == "think" and thinking is not None:
            thinking.work(ctx)
            return
        if deed != "note":
            ctx.tx.execute(
                "INSERT INTO scratch (id, attempt) VALUES (?, ?)",
                (ctx.message.id, ctx.message.attempt),
            )
        if deed in RAISED:
            raise RAISED[deed]
        match deed:
            case "fail" if first:
                raise RuntimeError(deed)
            case "later" if first:
                raise Retry(after=2.0)
            case "forward":
                _pass_on(ctx, follower, body["n"], results)
            case "reply":
                ctx.reply({"n": body["n"], "do": "note", "result": ctx.message.id})

    return agent


def _deed(body: dict[str, Any], results: int) -> str:
    """Return what to do; where several results are passed on, a note is passed on once, too."""
    passes = results > 1 and body["do"] == "note" and "result" not in body
    return "forward" if passes else str(body["do"])


def _pass_on(ctx: Context, follower: str, number: int, results: int) -> None:
    for place in range(results):
        result = f"{ctx.message.id} {place}"
        ctx.send(follower, {"n": number, "do": "note", "result": result})


SCRATCH: Final = "CREATE TABLE scratch (id TEXT NOT NULL, attempt INTEGER NOT NULL, UNIQUE (id))"
"""A handler's own writes; UNIQUE fails an attempt that finds the writes of an earlier one."""
HALF: Final = "SELECT id FROM scratch WHERE id NOT IN (SELECT id FROM simulated_effects)"
"""Writes of a handler whose effect is not there: they should have gone with it."""
