"""A trace crosses machines: signed parcels over HTTP carry it unchanged."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.conftest import Telemetry, parent_id, span_id, trace_id
from tests.transports.over_http import LOOPBACK

from onceward import Agent, Postbox
from onceward.transports.http_listener import HttpListener
from onceward.transports.keys import Keys


def test_asking_over_http_is_one_trace(tmp_path: Path, telemetry: Telemetry) -> None:
    """Two homes with a tracer each: request, handling and reply have one trace id."""
    near, far, there = tmp_path / "near", tmp_path / "far", Telemetry()
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    bob = Agent("bob")
    bob.on("text")(lambda question: f"{question} indeed")
    there.observe(bob)
    with (
        Postbox(near / "alice.db", agent="alice", listeners=[a := HttpListener(LOOPBACK)]) as alice,
        Postbox(far / "bob.db", agent=bob, listeners=[b := HttpListener(LOOPBACK)]) as box,
    ):
        telemetry.observe(alice)
        alice.peers.register("bob", b.url)
        box.peers.register("alice", a.url)
        assert "so indeed" == alice.ask("bob", "so", reply=str, timeout=60)

    sent, handled = telemetry.one("send bob"), there.one("process bob")
    assert span_id(sent) == parent_id(handled)
    assert {trace_id(sent)} == {trace_id(handled), trace_id(there.one("send alice"))}
