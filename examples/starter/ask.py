"""Ask the greeter from another process; start ``onceward work greeter:greeter`` first."""

import sys

from greeter import Greeting, Hello

from onceward import Postbox

with Postbox("caller.db", agent="caller") as caller:
    name = sys.argv[1] if len(sys.argv) > 1 else "world"
    print(caller.ask("greeter", Hello(name=name), reply=Greeting, timeout=10).text)
