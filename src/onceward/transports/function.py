"""Deliver frames by a function of the user, which says which of them arrived."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from onceward.errors import Unreachable
from onceward.model.frame import Frame
from onceward.model.parcel import Answer, Durability, Parcel, Receipt
from onceward.transports.base import Features, refuse_damaged
from onceward.transports.event_loop import start_loop

Answered = Receipt | bool | None
Receipts = Sequence[Answered] | Mapping[str, Answered] | bool | None
Send = Callable[[list[Frame]], Receipts] | Callable[[list[Frame]], Awaitable[Receipts]]


class FunctionTransport:
    """
    Calls ``send(frames)``, sync or async, and reads its answer.

    The answer is a receipt or a boolean per frame, in order or by id, or one
    boolean for all. A frame without an answer, or with False, is tried again by
    itself while its lane waits; an exception is a failed push of the whole.
    The other end must keep frame ids: a frame may come twice.
    """

    features = Features(schemes=frozenset({"function"}), streams=False)

    def __init__(
        self, send: Send, *, durability: Durability = "safe", timeout: float = 30.0
    ) -> None:
        self._send, self._durability, self._timeout = send, durability, timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = Lock()

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Call the function and return its receipts; any exception of it fails the push.

        Raises:
            Unreachable: the function raised it, or did not answer in time.
            Refused: the function raised it.

        """
        del url
        if not parcel.frames:
            return Answer(verdict="accepted", durability=self._durability)
        refuse_damaged(parcel)
        frames = [Frame.parse(carried.text) for carried in parcel.frames]
        said = self._send(frames)
        if inspect.isawaitable(said):
            said = self._await(said)
        return Answer(
            verdict="accepted", receipts=_receipts(said, frames), durability=self._durability
        )

    def _await(self, said: Any) -> Receipts:
        async def limited() -> Receipts:
            answer: Receipts = await asyncio.wait_for(said, self._timeout)
            return answer

        try:
            return asyncio.run_coroutine_threadsafe(limited(), self._own_loop()).result()
        except TimeoutError as error:
            msg = f"the function did not answer within {self._timeout} s"
            raise Unreachable(msg) from error

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = start_loop("onceward-function")
            return self._loop

    def close(self) -> None:
        """Stop the loop of async functions."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


def _receipts(said: Receipts, frames: list[Frame]) -> tuple[Receipt, ...]:
    if said is None or isinstance(said, bool):
        return tuple(_receipt(bool(said), frame.id) for frame in frames)
    if isinstance(said, Mapping):
        return tuple(_receipt(said[frame.id], frame.id) for frame in frames if frame.id in said)
    return tuple(_receipt(word, frame.id) for word, frame in zip(said, frames, strict=False))


def _receipt(word: Answered, message_id: str) -> Receipt:
    if isinstance(word, Receipt):
        return word
    return (
        Receipt(message_id, "stored")
        if word
        else Receipt(message_id, "busy", "the function said no")
    )
