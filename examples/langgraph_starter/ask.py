"""Give the assistant a task, or say yes; start ``onceward work assistant:assistant`` first."""

import sys

from assistant import Approval, Task

from onceward import Postbox

with Postbox("caller.db", agent="caller") as caller:
    words = sys.argv[1] if len(sys.argv) > 1 else "pay 1999 to the baker"
    body = Approval() if words == "yes" else Task(goal=words)
    print(caller.session("desk").ask("assistant", body, reply=str, timeout=120))
