"""What a plain function may answer, and what that means for the mail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.errors import Unreachable
from onceward.message.events import Retried
from onceward.message.frame import Frame
from onceward.message.parcel import Receipt
from onceward.testing import Controls, ManualClock
from onceward.transports.function import FunctionTransport, Receipts


class Near:
    """A postbox that sends to a function, and the bodies of every call of the function."""

    def __init__(self, box: Postbox, clock: ManualClock, calls: list[list[object]]) -> None:
        self.box, self.clock, self.calls = box, clock, calls

    def turn(self, rounds: int = 1) -> None:
        """Pass the longest pause *rounds* times, and push after each."""
        for _ in range(rounds):
            self.clock.advance(61)
            self.box.run_until_idle()

    def attempts(self) -> dict[object, int]:
        """Return by body the attempts of the messages that wait."""
        rows = self.box.query("SELECT body, attempts FROM onceward_outbox WHERE state = 'pending'")
        return dict(rows)


Open = Callable[..., Near]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return what opens a postbox whose peer ``webhook`` is a function."""
    boxes: list[Postbox] = []

    def opener(
        answer: Callable[[list[object]], Receipts], *, whole: bool = False, **settings: int
    ) -> Near:
        clock, calls = ManualClock(), list[list[object]]()

        def send(frames: list[Frame]) -> Receipts:
            calls.append([frame.data for frame in frames])
            return answer([frame.data for frame in frames])

        box = Postbox(
            tmp_path / "near.db",
            agent="near",
            start=False,
            testing=Controls(clock=clock),
            transports={"function": FunctionTransport(send, all_or_none=whole)},
            delivery_retry="±0%",
            handler_retry="±0%",
            delivery_attempts=settings.get("delivery_attempts", 11),
        )
        boxes.append(box)
        box.peers.add("webhook", "function:webhook")
        return Near(box, clock, calls)

    yield opener
    for box in boxes:
        box.close()


@pytest.mark.parametrize("answer", [True, [True]], ids=["one word for all", "a word for each"])
def test_yes_ends_custody(opened: Open, answer: Receipts) -> None:
    """A function that took a message is not asked again: no peer behind it will say processed."""
    near = opened(lambda _: answer)
    mail = near.box.send("webhook", "hello")
    near.box.run_until_idle()
    near.turn(2)

    assert ("acked", [["hello"]]) == (near.box.state(mail), near.calls)


def test_a_call_gets_one_frame_of_each_lane(opened: Open) -> None:
    """The first frames of all lanes come in one call, their successors in the next."""
    near = opened(lambda _: True)
    for name in ("a", "b"):
        near.box.session(name).send_many([("webhook", f"{name}{n}") for n in range(2)])
    near.box.run_until_idle()

    assert [["a0", "b0"], ["a1", "b1"]] == near.calls


def test_frames_behind_a_refused_one_are_not_handed_over(opened: Open) -> None:
    """The function refuses the first of three: it never sees the others before it takes that."""
    refused, taken = {"m1"}, list[object]()

    def answer(bodies: list[object]) -> Receipts:
        taken.extend(body for body in bodies if body not in refused)
        return [body not in refused for body in bodies]

    near = opened(answer)
    near.box.send_many([("webhook", body) for body in ("m1", "m2", "m3")])
    near.box.run_until_idle()
    seen, attempts = list(near.calls), near.attempts()
    refused.clear()
    near.turn(2)

    assert ([["m1"]], {"m1": 1, "m2": 0, "m3": 0}) == (seen, attempts)
    assert ["m1", "m2", "m3"] == taken


def test_only_a_frame_that_was_handed_over_counts_as_tried(opened: Open) -> None:
    """Frames that wait behind a refused one have no event of a retry and spend no budget."""
    near, told = opened(lambda bodies: bodies != ["m1"], delivery_attempts=2), list[Retried]()
    near.box.on(Retried, told.append)
    first, second = near.box.send_many([("webhook", body) for body in ("m1", "m2")])
    near.box.run_until_idle()
    near.turn(2)

    assert [first] == [event.message_id for event in told]
    assert ("dead", "acked") == (near.box.state(first), near.box.state(second))


def test_what_was_taken_before_an_error_stays_taken(opened: Open) -> None:
    """An error at the second frame of a lane repeats that frame, never the first."""
    errors: list[Exception] = [ValueError("no"), Unreachable("away")]

    def answer(bodies: list[object]) -> Receipts:
        if bodies == ["m2"] and errors:
            raise errors.pop()
        return True

    near = opened(answer)
    mails = near.box.send_many([("webhook", body) for body in ("m1", "m2", "m3")])
    near.box.run_until_idle()
    near.turn(2)

    assert [["m1"], ["m2"], ["m2"], ["m2"], ["m3"]] == near.calls
    assert {"acked"} == {near.box.state(mail) for mail in mails}


def test_receipts_may_come_in_any_order(opened: Open) -> None:
    """A receipt is for the frame whose id it bears, wherever it stands in the answer."""
    mails: list[str] = []
    near = opened(lambda _: [Receipt(mails[1], "busy", "later"), Receipt(mails[0], "processed")])
    mails += [near.box.session(name).send("webhook", name) for name in ("a", "b")]
    near.box.run_until_idle()

    assert ["acked", "pending"] == [near.box.state(mail) for mail in mails]


def test_a_function_that_takes_all_or_none_gets_a_parcel_in_one_call(opened: Open) -> None:
    """With ``all_or_none`` one refused frame means that none was taken: all come again."""
    answers: list[Receipts] = [[True, False, True], True]
    near = opened(lambda _: answers.pop(0), whole=True)
    mails = near.box.send_many([("webhook", body) for body in ("m1", "m2", "m3")])
    near.box.run_until_idle()
    near.turn()

    assert [["m1", "m2", "m3"], ["m1", "m2", "m3"]] == near.calls
    assert {"acked"} == {near.box.state(mail) for mail in mails}
