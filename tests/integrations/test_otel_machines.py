"""A trace crosses machines: signed parcels over HTTP, and those through NATS, carry it."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from opentelemetry.trace.span import TraceState
from tests.integrations.conftest import Telemetry, parent_id, span_id, trace_id
from tests.transports.nats_server import nats_server
from tests.transports.over_http import LOOPBACK

from onceward import Agent, Postbox
from onceward.transports.network.http_listener import HttpListener
from onceward.transports.network.keys import Keys
from onceward.transports.network.nats_listener import NatsListener

Listening = HttpListener | NatsListener
CALLER = SpanContext(
    0x0AF7651916CD43DD8448EB211C80319C,
    0xB7AD6B7169203331,
    is_remote=True,
    trace_flags=TraceFlags(1),
    trace_state=TraceState([("rojo", "00f067aa0ba902b7"), ("congo", "t61rcWkgMzE")]),
)


def test_asking_over_http_is_one_trace(tmp_path: Path, telemetry: Telemetry) -> None:
    """Two homes with a tracer each: request, handling and reply have one trace."""
    a, b = HttpListener(LOOPBACK), HttpListener(LOOPBACK)

    assert_one_trace(tmp_path, telemetry, alice=a, bob=b)


def test_asking_by_way_of_nats_is_one_trace(tmp_path: Path, telemetry: Telemetry) -> None:
    """A server between both changes nothing of it."""
    with nats_server(tmp_path) as server:
        a, b = NatsListener(server.url()), NatsListener(server.url())

        assert_one_trace(tmp_path, telemetry, alice=a, bob=b)


def assert_one_trace(
    folder: Path, telemetry: Telemetry, *, alice: Listening, bob: Listening
) -> None:
    """Let alice ask bob, each in a home of its own, and compare the spans of both."""
    near, far, there = folder / "near", folder / "far", Telemetry()
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    answering = Agent("bob")
    answering.on("text")(lambda question: f"{question} indeed")
    there.observe(answering)
    with (
        Postbox(near / "alice.db", agent="alice", listeners=[alice]) as a,
        Postbox(far / "bob.db", agent=answering, listeners=[bob]) as b,
    ):
        telemetry.observe(a)
        a.peers.add("bob", url_of("bob", bob))
        b.peers.add("alice", url_of("alice", alice))
        token = attach(set_span_in_context(NonRecordingSpan(CALLER)))
        assert "so indeed" == a.ask("bob", "so", reply=str, timeout=60)
        detach(token)

    sent, handled, reply = telemetry.one("send bob"), *map(there.one, ("process bob", "send alice"))
    assert [CALLER.span_id, span_id(sent), span_id(handled)] == list(
        map(parent_id, (sent, handled, reply))
    )
    assert {CALLER.trace_id} == set(map(trace_id, (sent, handled, reply)))
    assert [CALLER.trace_state] * 3 == [span.context.trace_state for span in (sent, handled, reply)]


def url_of(agent: str, listener: Listening) -> str:
    """Return where a listening agent is reached; a server serves several."""
    return f"{listener.url}/{agent}" if isinstance(listener, NatsListener) else listener.url
