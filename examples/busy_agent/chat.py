"""
Steer a coding agent while it works; no network, and the same output every time.

    python3 examples/busy_agent/chat.py [FOLDER]

Three agents with a file each: a user who changes her mind, a coder whose
sessions are in mode ``steer``, and a tester that gets tasks from the coder.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from threading import Event

from onceward import Agent, AsyncRun, Postbox, Run, Session

PATIENCE = 60.0
THINKING = Event()
PLAN = ("read the code", "write regular expressions")

coder = Agent("coder")
tester = Agent("tester")


@coder.runs(mode="steer")
async def code(run: AsyncRun) -> str | None:
    """Do a turn with a checkpoint after every step, from which the next run continues."""
    if run.message.type == "worker_result":
        print(f"coder:  the tester says {run.message.body['result']!r}")
        await run.send("user", "done, and tested")
        return None
    if run.previous is None:
        return await first_try(run)
    print(f"coder:  stopped after {run.previous.partial}; now: {run.message.body!r}")
    steps = [*run.previous.partial, "rewrite it with ast"]
    await run.checkpoint(steps)
    await run.dispatch("tester", {"test": steps})
    await run.send("user", "rewritten, and given to the tester")
    return None


async def first_try(run: AsyncRun) -> str:
    """Write a first version, and lose time on details."""
    steps: list[str] = []
    for step in PLAN:
        steps.append(step)
        await run.checkpoint(steps)
        print(f"coder:  {step}: done, and safe")
    await run.send("user", "never heard: this run is ended before it says so in a commit")
    THINKING.set()
    await asyncio.sleep(PATIENCE)  # a model that thinks; steering cancels it here
    return "finished"


@tester.runs()
def test(run: Run) -> str:
    """Test what was written."""
    print(f"tester: testing what {len(run.message.body['test'])} steps made")
    return "12 passed"


def main(folder: Path) -> None:
    """Ask for something, change one's mind in the middle, and read the answers."""
    with (
        Postbox(folder / "coder.db", agent=coder) as box,
        Postbox(folder / "tester.db", agent=tester),
        Postbox(folder / "user.db", agent="user") as user,
    ):
        chat = user.session("chat")
        say(chat, "write me a parser")
        THINKING.wait(PATIENCE)
        say(chat, "not with regular expressions: use ast")
        for answer in chat.receive_each(timeout=PATIENCE):
            with answer:
                print(f"user:   hears {answer.body!r}")
            if answer.body == "done, and tested":
                break
        while box.runs.list(state="open"):
            time.sleep(0.01)
        for run in reversed(box.runs.list()):
            print(f"file:   a run of {len(run.event_ids)} in mode {run.mode}: {run.state}")


def say(chat: Session, text: str) -> None:
    """Send to the coder and show it."""
    print(f"user:   {text}")
    chat.send("coder", text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="onceward-busy-") as made:
            main(Path(made))
