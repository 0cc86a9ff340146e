"""Give the assistant a task; start ``onceward work assistant:assistant`` first."""

import sys

from assistant import Task

from onceward import Postbox

with Postbox("caller.db", agent="caller") as caller:
    goal = sys.argv[1] if len(sys.argv) > 1 else "remember the milk"
    print(caller.ask("assistant", Task(goal=goal), reply=str, timeout=120))
