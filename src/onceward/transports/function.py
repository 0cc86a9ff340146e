"""Deliver frames through a user's function, which returns which of them arrived."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from onceward.core.deliver.transport import Features
from onceward.errors import DeliveryError, PushFailed, Refused, Unreachable
from onceward.message.clock import monotonic
from onceward.message.error_text import error_text, message_of, storable
from onceward.message.frame import Frame
from onceward.message.parcel import Answer, Durability, Parcel, Receipt, refuse_damaged
from onceward.message.times import Span, seconds
from onceward.transports.network.loop_thread import LoopThread

Answered = Receipt | bool | None
Receipts = Sequence[Answered] | Mapping[str, Answered] | bool | None
Send = Callable[[list[Frame]], Receipts] | Callable[[list[Frame]], Awaitable[Receipts]]


NO_ANSWER: Final = "the function returned no answer for it"
CALLS_BEGIN_WITHIN: Final = 10.0
"""Seconds in which calls for one parcel may begin; the other frames come with the next parcel."""


class FunctionTransport:
    """
    Calls ``send(frames)``, sync or async, and reads its answer.

    The answer is a receipt or a boolean per frame, in order or by id, or one boolean for all. A
    call gets at most one frame of each lane; the next frame of a lane follows once the function has
    accepted the previous one. A frame without an answer, or with False, is retried individually
    while its lane waits; an exception is a failed push of the frames of that call. With
    *all_or_none* the function accepts all frames of a call or none: it gets a parcel in one call,
    and all frames come again if it refuses one. The other end must remember frame ids: a frame may
    come twice.
    """

    features = Features(schemes=frozenset({"function"}), streams=False)

    def __init__(
        self,
        send: Send,
        *,
        durability: Durability = "safe",
        timeout: Span = 30.0,
        all_or_none: bool = False,
    ) -> None:
        self._send, self._durability = send, durability
        self._timeout = seconds("timeout", timeout)
        self._all_or_none = all_or_none
        self._loop = LoopThread("onceward-function")

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Call the function and return its receipts; an exception in the first call fails the push.

        Frames that were not passed to it have no receipt.

        Raises:
            Unreachable: the function raised it, or did not answer in time.
            Refused: the function raised it.
            PushFailed: the function raised something else.

        """
        del url
        refuse_damaged(parcel)
        frames = [Frame.parse(carried.text) for carried in parcel.frames]
        if self._all_or_none and frames:
            receipts = _all_or_none(self._call(frames))
        else:
            receipts = self._hand_over(frames)
        return Answer(verdict="accepted", receipts=tuple(receipts), durability=self._durability)

    def _hand_over(self, frames: list[Frame]) -> list[Receipt]:
        """Pass the first frames of all lanes, then the frames after the accepted ones."""
        lanes: dict[tuple[str, int], deque[Frame]] = {}
        for frame in frames:
            lanes.setdefault((frame.lane, frame.priority), deque()).append(frame)
        receipts: list[Receipt] = []
        begin_until = monotonic() + CALLS_BEGIN_WITHIN
        while lanes and monotonic() < begin_until:
            heads = [lane.popleft() for lane in lanes.values()]
            try:
                answered = self._call(heads)
            except Exception as error:  # the results of earlier calls are kept
                if not receipts:
                    raise
                return receipts + _failed(heads, error)
            receipts += answered
            taken = [receipt.state != "busy" for receipt in answered]
            lanes = {
                key: lane
                for went, (key, lane) in zip(taken, lanes.items(), strict=True)
                if went and lane
            }
        return receipts

    def _call(self, frames: list[Frame]) -> list[Receipt]:
        try:
            said = self._send(frames)
            said = self._await(said) if inspect.isawaitable(said) else said
        except DeliveryError:
            raise
        except Exception as error:
            raise PushFailed(error_text(error)) from error
        return _receipts(said, frames)

    def _await(self, said: Any) -> Receipts:
        async def answer() -> Receipts:
            told: Receipts = await said
            return told

        return self._loop.run(answer(), self._timeout, "the function did not answer")

    def close(self) -> None:
        """Cancel running async functions, and stop their loop."""
        self._loop.close()


def _receipts(said: Receipts, frames: list[Frame]) -> list[Receipt]:
    """Return one receipt for each of *frames*, in order."""
    if said is None or isinstance(said, bool):
        words = dict[str, Answered].fromkeys((frame.id for frame in frames), said)
    elif isinstance(said, Mapping):
        words = dict(said)
    else:
        words = {
            word.id if isinstance(word, Receipt) else frame.id: word
            for word, frame in zip(said, frames, strict=False)
        }
    return [_receipt(words.get(frame.id), frame.id) for frame in frames]


def _receipt(word: Answered, message_id: str) -> Receipt:
    if isinstance(word, Receipt):
        return word if word.reason is None else word._replace(reason=storable(word.reason))
    if word:
        return Receipt(message_id, "stored")
    return Receipt(message_id, "busy", "the function refused it" if word is False else NO_ANSWER)


def _all_or_none(receipts: list[Receipt]) -> list[Receipt]:
    """Return the receipts; all are refusals if one is."""
    refused = next((receipt for receipt in receipts if receipt.state == "busy"), None)
    return receipts if refused is None else [refused._replace(id=r.id) for r in receipts]


def _failed(frames: list[Frame], error: Exception) -> list[Receipt]:
    """Return a refusal of each frame; none if the peer was unreachable, which costs no attempt."""
    if isinstance(error, Unreachable | Refused):
        return []  # these frames are first in the next parcel, and the same error fails its push
    return [Receipt(frame.id, "busy", message_of(error)) for frame in frames]
