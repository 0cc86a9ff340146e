"""
A process of its own: ``child.py TASK HOME``.

It says on stdout, in JSON, what it does, and ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from onceward import Agent, Postbox, Run


def say(word: object) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{json.dumps(word)}\n")
    sys.stdout.flush()


def stubborn(run: Run) -> str:
    """Work until the run is ended from outside, and then try to have the last word."""
    say([message.body for message in run.messages])
    while not run.cancelled:
        time.sleep(0.01)
    say("aborted")
    run.send("user", "the last word")
    return "too late"


def brisk(run: Run) -> None:
    """Answer at once with what was said."""
    run.reply([message.body for message in run.messages])


def main(task: str, home: Path) -> None:
    """
    Serve the coder's sessions until stdin ends.

    A stubborn process does not look for steering itself.
    """
    agent = Agent("coder")
    agent.runs(mode="steer" if task == "brisk" else "followup")(
        brisk if task == "brisk" else stubborn
    )
    with Postbox(home / "coder.db", agent=agent):
        say("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
