"""What parcels through NATS survive: absent agents, dead servers, lost stores, forged mail."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, partial
from gc import collect
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import Client
from tests.transports.forked import listening_child
from tests.transports.nats_server import NatsServer, nats_server
from tests.waiting import until

from onceward import Postbox
from onceward.core.deliver.transport import Accept, TransportContext
from onceward.errors import DiskFull, ParcelTooLarge, Refused, Unreachable
from onceward.message.clock import SystemClock
from onceward.message.frame import Frame
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.message.settings import Settings
from onceward.message.wire import encode_answer, encode_parcel
from onceward.testing.builders import build_frame, parcel
from onceward.testing.wire import acceptor
from onceward.transports.network import nats, nats_link
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats import ANSWERED, OUTCOME, PARCEL, NatsTransport, _content
from onceward.transports.network.nats_link import Credentials, Link
from onceward.transports.network.nats_listener import NatsBinding, NatsListener
from onceward.transports.network.nats_setup import _examined

SOON = 4.0
"""Seconds that a push waits in vain."""


@cache
def frame(number: int) -> Frame:
    """Return the same frame for the same number."""
    return build_frame(number, sender="near", recipient="far")


def pushed(number: int = 1, **fields: Any) -> Parcel:
    """Return a parcel with one frame; of one number, the same one each time."""
    return parcel(number, [frame(number)], **fields)


def stored(taken: Parcel) -> Answer:
    """Answer a parcel as an inbox that kept it would."""
    receipts = tuple(Receipt(frame.id, "stored") for frame in taken.frames)
    return Answer(verdict="accepted", receipts=receipts)


class Ends:
    """A server, and what sends and listens there."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.folder, self.server = folder, server
        self.stack = ExitStack()

    def transport(self, agent: str = "near", timeout: float = 20.0) -> NatsTransport:
        """Return the transport of an agent; an exchange takes at most *timeout* seconds."""
        made = NatsTransport(self.context(agent, timeout))
        self.stack.callback(made.close)
        return made

    def context(self, agent: str, timeout: float = 20.0) -> TransportContext:
        """Return what transports and listeners of an agent are made of."""
        return TransportContext(
            agent=agent,
            folder=self.folder,
            settings=Settings(deliver_timeout=timeout / 0.9),
            clock=SystemClock(),
        )

    def listener(self, accept: Accept = stored, agent: str = "far") -> NatsBinding:
        """Listen for an agent."""
        made = NatsListener(self.server.url())(self.context(agent))
        self.stack.callback(made.close)
        made.listen(agent, accept)
        return made

    def raw(self, work: Callable[[Client], Coroutine[Any, Any, Any]], **options: Any) -> Any:
        """Run *work* with a client of its own."""

        async def run() -> Any:
            client = Client()
            await client.connect(self.server.url(), **options)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(run())

    def streams(self) -> dict[str, tuple[int, int]]:
        """Return how many messages the streams hold, and the number of the last one."""

        async def look(client: Client) -> dict[str, tuple[int, int]]:
            found = {}
            for name in names.STREAMS:
                state = (await client.jetstream().stream_info(name)).state
                found[name] = state.messages, state.last_seq
            return found

        told: dict[str, tuple[int, int]] = self.raw(look)
        return told


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """A server without users, and nothing else yet."""
    with nats_server(tmp_path) as server:
        made = Ends(tmp_path, server)
        with made.stack:
            yield made


# -- closing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "consume"])
def test_closing_ends_a_listener_whose_cancellation_was_lost(
    ends: Ends, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``wait_for`` of Python 3.11 may swallow a cancellation in the client; close() ends still."""
    real, reached = getattr(Link, call), Event()

    async def deaf(*args: Any) -> Any:
        reached.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await real(*args)

    monkeypatch.setattr(Link, call, staticmethod(deaf) if call == "open" else deaf)
    listener = ends.listener()
    assert reached.wait(60)
    closing = Thread(target=listener.close, daemon=True)
    closing.start()
    closing.join(30)

    assert not closing.is_alive()


# -- absent agents ---------------------------------------------------------------------------


def test_sender_and_recipient_need_never_be_up_together(ends: Ends) -> None:
    """A parcel waits for its recipient, its answer for the sender, which pushes nothing again."""
    seen: list[Parcel] = []
    done = Event()

    def accept(taken: Parcel) -> Answer:
        seen.append(taken)
        done.set()
        return stored(taken)

    first = ends.transport(timeout=SOON)
    with pytest.raises(Unreachable, match="no answer from far within"):
        first.deliver(ends.server.url("far"), pushed())
    first.close()
    listener = ends.listener(accept)
    assert done.wait(60)
    listener.close()
    answered = {names.PARCELS: (0, 1), names.ANSWERS: (1, 1)}
    assert until(lambda: answered == ends.streams())  # the parcel is removed behind the answer
    answer = ends.transport().deliver(ends.server.url("far"), pushed())

    assert (stored(pushed()), [pushed()]) == (answer, seen)
    assert answered == ends.streams()


def test_an_answer_is_for_one_content(ends: Ends) -> None:
    """A push of the same number with another receipt is not a repetition: it is pushed itself."""
    seen: list[Parcel] = []

    def accept(taken: Parcel) -> Answer:
        seen.append(taken)
        return stored(taken)

    with pytest.raises(Unreachable):
        ends.transport(timeout=SOON).deliver(ends.server.url("far"), pushed())
    ends.listener(accept)
    assert until(lambda: ends.streams()[names.ANSWERS] == (1, 1))  # it is stored for the sender
    fuller = pushed(receipts=[Receipt("m", "processed")])
    ends.transport().deliver(ends.server.url("far"), fuller)

    assert fuller == seen[-1]


def test_a_newer_parcel_replaces_the_older_one(ends: Ends) -> None:
    """Of two parcels of a pair that were not taken, the recipient gets the newer one only."""
    sender = ends.transport(timeout=SOON)
    for number in (1, 2):
        with pytest.raises(Unreachable):
            sender.deliver(ends.server.url("far"), pushed(number, previous="x" * (number - 1)))
    seen: list[int] = []
    done = Event()

    def accept(taken: Parcel) -> Answer:
        seen.append(taken.number)
        done.set()
        return stored(taken)

    waiting = ends.streams()[names.PARCELS]
    ends.listener(accept)
    assert done.wait(60)

    assert ((1, 2), [2]) == (waiting, seen)


@cache
def large_parcel(number: int = 1) -> Parcel:
    """Return a parcel that must not wait at the server; of one number, the same one each time."""
    return parcel(number, [build_frame("x" * 100_000, sender="near", recipient="far")])


def waiting_bytes(ends: Ends) -> int:
    """Return the bytes of the stream of parcels."""

    async def look(client: Client) -> int:
        return int((await client.jetstream().stream_info(names.PARCELS)).state.bytes)

    found: int = ends.raw(look)
    return found


def test_of_a_large_parcel_only_a_bell_waits(ends: Ends) -> None:
    """
    A recipient that takes nothing has a small message at the server, and gets the parcel later.

    Neither end need be up together: the bell is answered first, then the parcel.
    """
    sizes, seen, done = list[int](), list[int](), Event()

    def accept(taken: Parcel) -> Answer:
        seen.append(taken.number)
        done.set()
        return stored(taken)

    def push() -> None:
        sender = ends.transport(timeout=SOON)
        with pytest.raises(Unreachable, match="no answer from far within"):
            sender.deliver(ends.server.url("far"), large_parcel())
        sizes.append(waiting_bytes(ends))
        sender.close()

    push()
    ringing = ends.listener(accept)
    assert until(lambda: ends.streams() == {names.PARCELS: (0, 1), names.ANSWERS: (1, 1)})
    ringing.close()
    push()
    taking = ends.listener(accept)
    assert done.wait(60)
    taking.close()
    last = ends.transport().deliver(ends.server.url("far"), large_parcel())

    assert ("accepted", [1], [True, False]) == (last.verdict, seen, [s < 1000 for s in sizes])


def test_a_recipient_that_stops_leaves_no_large_parcel(ends: Ends) -> None:
    """After the first push without an answer, the next one replaces its parcel by a bell."""
    sender = ends.transport(timeout=SOON)
    listener = ends.listener()
    sender.deliver(ends.server.url("far"), large_parcel())
    listener.close()
    sizes = []
    for number in (2, 3):
        with pytest.raises(Unreachable):
            sender.deliver(ends.server.url("far"), large_parcel(number))
        sizes.append(waiting_bytes(ends))

    assert [False, True] == [size < 1000 for size in sizes]


def test_a_large_parcel_reaches_a_listener_by_one_delivery(ends: Ends) -> None:
    """The bell is answered at once; further parcels need none."""
    ends.listener()
    sender = ends.transport()
    told = [
        sender.deliver(ends.server.url("far"), large_parcel(number)).verdict for number in (1, 2)
    ]

    assert (["accepted", "accepted"], 3) == (told, ends.streams()[names.PARCELS][1])


def test_absent_recipients_leave_space_for_those_that_are_up(ends: Ends) -> None:
    """Forty large parcels for agents that never listened fill a tenth of a stream for ten."""

    async def limit(client: Client) -> None:
        stream = client.jetstream()
        config = (await stream.stream_info(names.PARCELS)).config
        config.max_bytes = 1_000_000
        await stream.update_stream(config)

    ends.listener()
    sender, absent = ends.transport(timeout=SOON), [f"absent{number}" for number in range(40)]
    sender.deliver(ends.server.url("far"), pushed())
    ends.raw(limit)

    def push(name: str) -> bool:
        large = build_frame("x" * 100_000, sender="near", recipient=name)
        with suppress(Unreachable):
            sender.deliver(ends.server.url(name), parcel(1, [large], recipient=name))
            return True
        return False

    with ThreadPoolExecutor(len(absent)) as pool:
        arrived = list(pool.map(push, absent))
    told = sender.deliver(ends.server.url("far"), large_parcel(2)).verdict

    assert ([False] * 40, "accepted") == (arrived, told)
    until(lambda: waiting_bytes(ends) < 100_000)


def test_the_streams_are_made_with_a_bound_of_consumers(ends: Ends) -> None:
    """A server in which any name may listen keeps at most so many consumers of each stream."""

    async def look(client: Client) -> set[int | None]:
        found = [await client.jetstream().stream_info(name) for name in names.STREAMS]
        return {each.config.max_consumers for each in found}

    ends.listener()
    ends.transport().deliver(ends.server.url("far"), pushed())

    assert {names.CONSUMERS_MAX} == ends.raw(look)


def test_a_stream_has_a_bounded_number_of_consumers(ends: Ends) -> None:
    """An agent beyond the limit is told so, and those that have a consumer keep it."""
    small = {**names.STREAMS[names.PARCELS], "name": names.PARCELS, "max_consumers": 1}

    async def refused(client: Client) -> str:
        link = await Link.open((ends.server.url(),), "other", Credentials(ends.folder))
        try:
            await link.api(f"STREAM.CREATE.{names.PARCELS}", small)
            for name in ("far", "other"):
                config = {"name": names.consumer(name), "ack_policy": "explicit"}
                subjects = names.subjects_to("parcel", name)
                await link.consume(names.PARCELS, subjects, config)
        except Unreachable as error:
            return str(error)
        finally:
            await link.close()
        return ""

    assert "maximum consumers limit reached" in ends.raw(refused)


@pytest.mark.parametrize(("used", "level"), [(6900, "ok"), (7000, "filling")])
def test_a_stream_warns_before_it_is_full(used: int, level: str) -> None:
    """From 70 % of its bytes on, a stream of parcels has a level of its own."""
    config = {**names.STREAMS[names.PARCELS], "max_bytes": 10_000}

    class Told(Link):
        async def api(self, *_: object) -> dict[str, Any]:
            return {"config": config, "state": {"messages": 1, "bytes": used}}

    found = asyncio.run(_examined(Told(Client(), "near"), names.PARCELS))

    assert (level, f"1 messages, {used} of 10000 bytes") == (found.level, found.found)
    assert (used, 10_000) == (found.bytes, found.max_bytes)


def test_a_listener_says_how_full_the_streams_are(ends: Ends) -> None:
    """By the connection of an agent that it serves; without one it says nothing."""
    with pytest.raises(Unreachable):
        ends.transport(timeout=SOON).deliver(ends.server.url("other"), pushed(recipient="other"))
    listener = NatsListener(ends.server.url())
    before = listener.streams()
    serving = listener(ends.context("far"))
    ends.stack.callback(serving.close)
    serving.listen("far", stored)
    full = until(listener.streams)
    serving.close()

    assert ([], []) == (before, listener.streams())
    assert {names.PARCELS: (True, 1 << 30), names.ANSWERS: (False, 1 << 30)} == {
        each.name: (each.bytes > 0, each.max_bytes) for each in full
    }


def test_a_full_stream_takes_nothing_and_drops_nothing(ends: Ends) -> None:
    """A stream at the operator's limit refuses a parcel with its reason; others stay."""

    async def limit(client: Client) -> None:
        stream = client.jetstream()
        config = (await stream.stream_info(names.PARCELS)).config
        config.max_bytes = 2000
        await stream.update_stream(config)

    sender = ends.transport(timeout=SOON)
    with pytest.raises(Unreachable):
        sender.deliver(ends.server.url("far"), pushed())
    ends.raw(limit)
    large = build_frame("x" * 4000, sender="near", recipient="other")
    with pytest.raises(Unreachable, match="maximum bytes exceeded"):
        sender.deliver(ends.server.url("other"), parcel(1, [large], recipient="other"))

    assert (1, 1) == ends.streams()[names.PARCELS]


# -- dead servers and lost stores ------------------------------------------------------------


def test_a_server_that_is_away(tmp_path: Path) -> None:
    """A push to no server fails at once, with the reason of the connection."""
    ends = Ends(tmp_path, NatsServer(tmp_path))
    with ends.stack, pytest.raises(Unreachable, match=r"no connection to nats://127.*111"):
        ends.transport().deliver(ends.server.url("far"), pushed())


def test_a_server_that_dies_during_a_push(ends: Ends) -> None:
    """The push fails; after a restart both ends find the server again by themselves."""
    taken, go = Event(), Event()

    def accept(parcel: Parcel) -> Answer:
        taken.set()
        go.wait(60)
        return stored(parcel)

    ends.listener(accept)
    sender = ends.transport()
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(sender.deliver, ends.server.url("far"), pushed())
        assert taken.wait(60)
        ends.server.kill()
        with pytest.raises(Unreachable, match="ended"):
            push.result(60)
        ends.server.start()
        go.set()
        answer = sender.deliver(ends.server.url("far"), pushed())

    assert stored(pushed()) == answer


def test_a_connection_that_ends_while_a_parcel_is_stored() -> None:
    """The push fails once: no error stays behind that asyncio writes to the log."""
    unread = list[dict[str, Any]]()

    async def push() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unread.append(told))
        link = SimpleNamespace(broken=asyncio.Event())

        async def store(*_: object) -> None:
            link.broken.set()
            await asyncio.sleep(0.01)
            raise Unreachable("the connection ended")

        link.store = store
        answers = nats._Answers(cast("Link", link), "near", {})
        watch = asyncio.ensure_future(answers._fail_when_broken())
        with pytest.raises(Unreachable, match="the connection ended"):
            await answers.ask(pushed(), b"")
        await watch
        collect()

    asyncio.run(push())

    assert [] == unread


def test_a_server_that_lost_its_store(ends: Ends) -> None:
    """Streams and consumers are made again, by whichever end comes first; the push goes on."""
    ends.listener()
    sender = ends.transport()
    sender.deliver(ends.server.url("far"), pushed(1))
    for number in (2, 3):
        ends.server.kill()
        ends.server.wipe()
        ends.server.start()
        until(partial(_delivers, sender, ends.server.url("far"), pushed(number, previous="x")))

    assert until(lambda: {names.PARCELS: (0, 1), names.ANSWERS: (1, 1)} == ends.streams())


def _delivers(sender: NatsTransport, url: str, pushed: Parcel) -> bool:
    """Push; return False if the connection to the killed server ends only now."""
    try:
        sender.deliver(url, pushed)
    except Unreachable:
        return False
    return True


@pytest.mark.parametrize("gone", names.STREAMS)
def test_a_stream_that_is_deleted_under_way(
    ends: Ends, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that an operator deletes is made again by a later push, and nothing is lost."""

    async def delete(client: Client) -> None:
        await client.jetstream().delete_stream(gone)

    monkeypatch.setattr(nats, "HEARTBEAT", 0.3)
    ends.listener()
    sender = ends.transport(timeout=SOON)
    sender.deliver(ends.server.url("far"), pushed(1))
    ends.raw(delete)
    verdicts = list[str]()
    while not verdicts:
        with suppress(Unreachable):
            answer = sender.deliver(ends.server.url("far"), pushed(2, previous="x"))
            verdicts.append(answer.verdict)

    assert ["accepted"] == verdicts


def test_close_ends_a_push(ends: Ends) -> None:
    """A push that waits for its answer ends with the transport, and later ones do not begin."""
    sender = ends.transport()
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(sender.deliver, ends.server.url("far"), pushed())
        while not sender._answers:
            assert not push.done()
        sender.close()
        with pytest.raises(Unreachable, match="was closed"):
            push.result(60)
    with pytest.raises(Unreachable, match="is closed"):
        sender.deliver(ends.server.url("far"), pushed())


# -- what a recipient says --------------------------------------------------------------------


def test_a_refusal_is_told(ends: Ends) -> None:
    """What the recipient will never take is refused at the sender, with its reason."""

    def accept(taken: Parcel) -> Answer:
        raise Refused("not for us")

    ends.listener(accept)

    with pytest.raises(Refused, match="not for us"):
        ends.transport().deliver(ends.server.url("far"), pushed())
    assert until(lambda: (0, 1) == ends.streams()[names.PARCELS])


def test_a_file_that_is_full_is_told_and_tried_again(ends: Ends) -> None:
    """The sender hears why the file took nothing; the parcel stays and comes again by itself."""
    errors: list[Exception] = [DiskFull("the disk is full"), ValueError("a bug")]

    def accept(taken: Parcel) -> Answer:
        if errors:
            raise errors.pop(0)
        return stored(taken)

    ends.listener(accept)
    sender = ends.transport()
    why = list[str]()
    for _ in range(2):
        with pytest.raises(Unreachable) as told:
            sender.deliver(ends.server.url("far"), pushed())
        why.append(str(told.value))
    answer = sender.deliver(ends.server.url("far"), pushed())

    assert "far cannot accept the parcel: DiskFull: the disk is full" == why[0]
    assert ("far cannot accept the parcel: ValueError: a bug", "accepted") == (
        why[1],
        answer.verdict,
    )


def test_a_busy_inbox_is_asked_again(ends: Ends) -> None:
    """The answer that an inbox is full holds for one push; the next one asks again."""
    answers = [Answer(verdict="busy", retry_after=5), stored(pushed())]
    ends.listener(lambda _: answers.pop(0))
    said = [
        ends.transport().deliver(ends.server.url("far"), pushed()).verdict  # as after a restart
        for _ in range(2)
    ]

    assert ["busy", "accepted"] == said


def test_the_servers_limit_is_told(tmp_path: Path) -> None:
    """A parcel over ``max_payload`` is not sent; the error names what passes."""
    with nats_server(tmp_path, "max_payload: 65536") as server:
        ends = Ends(tmp_path, server)
        frame = build_frame("x" * 70_000, sender="near", recipient="far")
        with ends.stack, pytest.raises(ParcelTooLarge) as told:
            ends.transport().deliver(server.url("far"), parcel(1, [frame]))

    assert 65536 - 1024 == told.value.limit


def test_an_answer_over_the_limit_loses_reasons(tmp_path: Path) -> None:
    """An answer whose reasons are too long for the server arrives with shorter ones."""
    with nats_server(tmp_path, "max_payload: 65536") as server:
        ends = Ends(tmp_path, server)
        frames = [build_frame(n, sender="near", recipient="far") for n in range(100)]

        def accept(taken: Parcel) -> Answer:
            receipts = tuple(Receipt(f.id, "rejected", "because " * 120) for f in taken.frames)
            return Answer(verdict="accepted", receipts=receipts)

        with ends.stack:
            ends.listener(accept)
            answer = ends.transport().deliver(server.url("far"), parcel(1, frames))

    assert {("rejected", ("because " * 10))} == {(r.state, r.reason) for r in answer.receipts}
    assert 100 == len(answer.receipts)


# -- forged and old messages -----------------------------------------------------------------


def test_what_is_no_parcel_reaches_no_inbox(ends: Ends) -> None:
    """Bytes that are not a parcel, or bear other names than their subject, are thrown away."""
    seen: list[Parcel] = []

    def accept(taken: Parcel) -> Answer:
        seen.append(taken)
        return stored(taken)

    async def garbage(client: Client) -> None:
        subject = names.subject("parcel", "far", "near")
        strange = encode_parcel(parcel(1, [frame(1)], sender="mallory"))
        for body in (b"", b"{}", b"[]", b"\x00" * 100, strange):
            await client.jetstream().publish(subject, body)

    sender = ends.transport()
    ends.listener(accept)
    sender.deliver(ends.server.url("far"), pushed(1))
    ends.raw(garbage)
    sender.deliver(ends.server.url("far"), pushed(2, previous="x"))

    assert [1, 2] == [each.number for each in seen]


def test_what_is_no_answer_ends_no_push(ends: Ends) -> None:
    """Answers to other parcels, with strange receipts or under other names, are not heard."""
    one, other = pushed(1), pushed(2, previous="x")
    strange = Answer(verdict="accepted", receipts=(Receipt("m", "processed"),))
    forged = (
        ("far", ANSWERED, b"{}"),
        ("far", ANSWERED, b"\xff" * 40),
        ("far", "", encode_answer(stored(one), one)),
        ("far", ANSWERED, encode_answer(stored(other), other)),
        ("far", ANSWERED, encode_answer(strange, one)),
        ("mallory", ANSWERED, encode_answer(stored(one), one)),
    )

    async def forge(client: Client) -> None:
        for sender, outcome, body in forged:
            headers = {PARCEL: _content(one), OUTCOME: outcome}
            subject = names.subject("answer", "near", sender)
            await client.jetstream().publish(subject, body, headers=headers)

    sender = ends.transport(timeout=SOON)
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(sender.deliver, ends.server.url("far"), one)
        while not sender._answers:
            assert not push.done()
        ends.raw(forge)
        with pytest.raises(Unreachable, match="no answer from far"):
            push.result(60)


def test_old_parcels_have_no_second_effect(ends: Ends) -> None:
    """Parcels that are published again, days later, are duplicates or forks to the inbox."""
    with (
        Postbox(ends.folder / "far.db", agent="far", start=False) as far,
        Postbox(ends.folder / "near.db", agent="near", start=False) as near,
    ):
        old: list[bytes] = []
        inbox = acceptor(far, Settings())

        def accept(taken: Parcel) -> Answer:
            old.append(encode_parcel(taken))
            answers.append(inbox(taken).verdict)
            return inbox(taken)

        async def again(client: Client) -> None:
            for body in old[:]:
                await client.jetstream().publish(names.subject("parcel", "far", "near"), body)

        answers = list[str]()
        ends.listener(accept)
        near.peers.add("far", ends.server.url("far"))
        for body in range(3):
            near.send("far", body)
            near.run_until_idle()
        for _ in range(3):
            ends.raw(again)
        while len(answers) < 4:
            pass
        bodies = [message.body for message in far.history().messages]

    assert [2, 1, 0] == bodies
    assert {"accepted", "duplicate", "fork"} >= set(answers)


def test_messages_over_the_servers_limit_leave_in_smaller_parcels(tmp_path: Path) -> None:
    """What a server with a small limit takes arrives; a message that it never takes is dead."""
    with (
        nats_server(tmp_path, "max_payload: 65536") as server,
        Postbox(tmp_path / "far.db", agent="far", start=False) as far,
        Postbox(tmp_path / "near.db", agent="near", start=False) as near,
    ):
        ends = Ends(tmp_path, server)
        with ends.stack:
            ends.listener(acceptor(far, Settings()))
            near.peers.add("far", server.url("far"))
            near.send_many([("far", "x" * 1000 + str(n)) for n in range(200)])
            large = near.send("far", "y" * 100_000)
            last = near.send("far", "last")
            near.run_until_idle()
            bodies = [message.body for message in far.history(limit=1000).messages][::-1]
            [dead] = near.dead_letters.list()

    assert [*("x" * 1000 + str(n) for n in range(200)), "last"] == bodies
    assert large == dead.id
    assert last != large


def test_postboxes_share_a_listener(ends: Ends) -> None:
    """One listener serves the agents of several postboxes; it ends with the last of them."""
    listener = NatsListener(ends.server.url())
    sender = ends.transport()
    bindings = {name: listener(ends.context(name)) for name in ("far", "other")}
    for name, binding in bindings.items():
        binding.listen(name, stored)
    to_other = parcel(1, [build_frame(1, sender="near", recipient="other")], recipient="other")
    sender.deliver(ends.server.url("far"), pushed(1))
    bindings["far"].close()
    bindings["far"].close()
    answer = sender.deliver(ends.server.url("other"), to_other)
    bindings["other"].close()

    assert stored(to_other) == answer
    assert listener.shared._made is None


def test_a_listener_that_was_used_before_a_fork_is_used_in_the_child(ends: Ends) -> None:
    """The child has a loop and threads of its own."""
    (ends.folder / "home").mkdir()
    sender = ends.stack.enter_context(
        Postbox(ends.folder / "sender.db", agent="sender", start=False, hold_unknown=True)
    )
    sender.peers.add("far", ends.server.url("far"))
    sender.send("far", "for the child")
    child = listening_child(ends.folder / "home", ends.server.url(), NatsListener, "near", "far")
    with child as heard:
        assert ("for the child\n", 0) == heard(sender.run_until_idle)


def test_a_server_that_does_not_encrypt_is_refused(ends: Ends) -> None:
    """With a context for TLS no parcel leaves in the clear."""
    sender = NatsTransport(ends.context("near"), tls=ssl.create_default_context())
    ends.stack.callback(sender.close)
    with pytest.raises(Unreachable, match="does not encrypt"):
        sender.deliver(ends.server.url("far"), pushed())


def test_an_answer_that_the_server_did_not_store_is_stored_no_second_time(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs holds a parcel, and with it a close, for one request and not for two."""
    real, asked = Link.store, list[str]()

    async def lost(link: Link, subject: str, body: bytes, headers: dict[str, str]) -> Any:
        if OUTCOME in headers:
            asked.append(headers[OUTCOME])
            raise Unreachable("no answer within 10 s") from TimeoutError()
        return await real(link, subject, body, headers)

    monkeypatch.setattr(Link, "store", lost)
    ends.listener()
    with pytest.raises(Unreachable, match="no answer from far"):
        ends.transport(timeout=SOON).deliver(ends.server.url("far"), pushed())

    assert {ANSWERED} == set(asked)


def test_a_server_that_hangs_holds_no_close(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push to a stopped server ends in its time, and the transport and listener close."""
    monkeypatch.setattr(nats_link, "ASK_WITHIN", 2 * SOON)  # the push ends by its own time first
    listener, sender = ends.listener(), ends.transport()
    sender.deliver(ends.server.url("far"), pushed(1))
    sender._limit = SOON
    ends.server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="no answer from far"):
            sender.deliver(ends.server.url("far"), pushed(2, previous="x"))
        sender.close()
        listener.close()
    finally:
        ends.server.signal(signal.SIGCONT)
