"""Requests to sessions with runs: each gets an answer, or its ticket ends."""

from typing import Any

import pytest

from onceward import Run
from onceward.errors import RequestFailed


class Asker:
    """A user whose requests go to one session of the coder."""

    def __init__(self, one: Any) -> None:
        self.one = one
        one.user.session("s")
        self.tickets: list[Any] = []

    def ask(self, *bodies: str, **options: Any) -> None:
        """Send requests."""
        self.tickets += [
            self.one.user.session("s").request("coder", body, **options) for body in bodies
        ]

    def answers(self) -> list[str]:
        """Return what became of each request."""
        return [self._answer(ticket) for ticket in self.tickets]

    def _answer(self, ticket: Any) -> str:
        try:
            return str(self.one.user.result(ticket, reply=str))
        except RequestFailed as error:
            return str(error.reason)


def test_a_collected_run_answers_every_request(scripted_agent: Any) -> None:
    """What the run returns is the reply to each of its requests, and to its last message."""
    one = scripted_agent(mode="collect")
    user = Asker(one)
    one.script = [lambda run: f"{len(run.messages)} at once"]
    one.say("no request")
    user.ask("a", "b")
    one.go()

    assert ["3 at once", "3 at once"] == user.answers()
    assert [] == one.got()


def test_a_run_may_answer_one_by_one(scripted_agent: Any) -> None:
    """A request that the run has answered itself gets that answer; the others get the run's."""
    one = scripted_agent(mode="collect")
    user = Asker(one)

    def works(run: Run) -> str:
        for message in run.messages[:2]:
            run.reply(f"only {message.body}", to=message)
            run.checkpoint(message.body)
        return "the others"

    one.script = [works]
    user.ask("a", "b", "c")
    one.go()

    assert ["only a", "only b", "the others"] == user.answers()
    assert [(3,)] == one.harness.sql("SELECT count(*) FROM onceward_outbox")


def test_a_run_without_an_answer_ends_its_requests(scripted_agent: Any) -> None:
    """Requests of a run that returns None and replies to none of them fail at once."""
    one = scripted_agent(mode="collect")
    user = Asker(one)
    user.ask("a", "b")
    one.go()

    assert ["processed without a reply"] * 2 == user.answers()


@pytest.mark.parametrize(
    ("aborted", "first"), [("return", "done"), ("deliver", "processed without a reply")]
)
def test_a_steered_request_ends_as_its_message(
    scripted_agent: Any, aborted: str, first: str
) -> None:
    """
    A request whose run is ended gets the answer of the run that takes it again.

    It fails at once where it counts as delivered.
    """
    one = scripted_agent(mode="steer", aborted=aborted)
    user = Asker(one)

    def busy(run: Run) -> None:
        run.checkpoint("half")
        user.ask("b")
        one.harness.deliver()

    one.script = [busy, lambda _: "done"]
    user.ask("a")
    one.go()

    answers = user.answers()
    assert (first, "done") == (answers[0].partition(":")[0], answers[1])
