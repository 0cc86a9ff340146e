"""
Run the team until its trip is booked; kill it in any way, and start it again.

    python run.py HOME

Its models answer from memory, so that it needs no key and no network.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from team import Goal, Ledger, planner, researcher

from onceward import Postbox

LEASE = 2
"""Seconds after which the messages of a dead process are taken again."""
Answer = Sequence[tuple[str, dict[str, Any]]] | str
"""Tools that a model calls, or the text that it says."""
RESEARCH: tuple[Answer, ...] = (
    [("search", {"query": "flights"}), ("search", {"query": "hotels"})],
    "flight 7, and a room at the sea",
)
PLAN: tuple[Answer, ...] = (
    [("book", {"what": "flight 7"}), ("book", {"what": "room"})],
    [("pay", {"cents": 42000})],
    "the trip is booked",
)


def scripted(answers: Sequence[Answer], told: Callable[[str], None]) -> FunctionModel:
    """Return a model that gives these answers, one after the other."""

    def respond(messages: list[ModelMessage], _info: object) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        told(f"model {turn}")
        answer = answers[turn]
        if isinstance(answer, str):
            return ModelResponse(parts=[TextPart(answer)])
        calls = [
            ToolCallPart(tool, args, tool_call_id=f"call-{turn}-{number}")
            for number, (tool, args) in enumerate(answer)
        ]
        return ModelResponse(parts=calls)

    return FunctionModel(respond)


def play(home: Path, ledger: Ledger, told: Callable[[str], None]) -> str:
    """Send the goal, once for all processes, and return what the planner says."""
    planning = planner(scripted(PLAN, told), ledger)
    research = researcher(scripted(RESEARCH, told), ledger)
    with (
        Postbox(home / "planner.db", agent=planning, lease=LEASE) as box,
        Postbox(home / "researcher.db", agent=research, lease=LEASE),
    ):
        ticket = box.request("planner", Goal(city="Lisbon"), key="trip")
        return box.result(ticket, reply=str, timeout=60)


def main(home: Path) -> None:
    """Run the team, and print its ledger."""
    home.mkdir(exist_ok=True)
    ledger = Ledger(home)
    print(play(home, ledger, lambda call: print("call", call)))
    print("ledger", *ledger.effects, sep="\n  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
