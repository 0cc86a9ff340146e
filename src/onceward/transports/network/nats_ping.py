"""Ping an agent through a NATS server, and answer pings, outside the streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from onceward.errors import InvalidParcel, Unreachable
from onceward.message.clock import Clock, Millis
from onceward.message.log import log
from onceward.message.protocol import Speaks
from onceward.message.wire import Notice, NoticeKind, decode_notice, encode_notice
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats_link import Link

if TYPE_CHECKING:
    from nats.aio.msg import Msg


class Pong(NamedTuple):
    """The answer to a ping."""

    ahead: Millis
    """Milliseconds by which the peer's clock is ahead."""
    speaks: Speaks | None


async def ping(link: Link, name: str, peer: str, clock: Clock) -> Pong:
    """
    Ping a process that listens for *peer*.

    Raises:
        Unreachable: no process listens for it now, none answers, or it may not answer parcels.

    """
    nonce = uuid4().hex
    question = Notice(kind="ping", sender=name, recipient=peer, at=clock.now(), detail=nonce)

    def answers(msg: Msg) -> Notice | None:
        found = _read(msg, ("pong", "refused"), peer, name)
        return found if found is not None and found.detail.startswith(nonce) else None

    subjects = names.subject("ping", peer, name), names.subject("pong", name, peer)
    found = await link.exchange(*subjects, encode_notice(question), answers)
    if found is None:
        raise Unreachable(
            f"listener: no process listens for {peer} at this server now; parcels wait there "
            f"until one does: onceward serve --listen {link.url}"
        )
    if found.kind != "pong":
        raise Unreachable(f"permission: {peer} cannot answer: {found.detail[len(nonce) :]}")
    return Pong(found.at - (question.at + clock.now()) // 2, found.speaks)


async def pong(link: Link, name: str, clock: Clock, msg: Msg) -> None:
    """Answer a ping under our own name, if we may answer parcels; ignore other messages."""
    peer = names.publisher(msg.subject, names.subjects_to("ping", name)) or ""
    asked = _read(msg, ("ping",), peer, name)
    if asked is None:
        return
    told = Notice(kind="pong", sender=name, recipient=peer, at=clock.now(), detail=asked.detail)
    try:
        await link.probe(names.subject("answer", peer, name))
    except Unreachable as error:
        told = replace(told, kind="refused", detail=f"{told.detail} {error}")
    try:
        await link.put(names.subject("pong", peer, name), encode_notice(told))
    except Unreachable as error:
        log.failure("debug", "ping not answered", error, agent=name, peer=peer)


def _read(msg: Msg, kinds: tuple[NoticeKind, ...], sender: str, recipient: str) -> Notice | None:
    """Return the notice in a message; None if it contains another or none."""
    try:
        found = decode_notice(msg.data)
    except InvalidParcel:
        return None
    ours = found.kind in kinds and (found.sender, found.recipient) == (sender, recipient)
    return found if ours else None
