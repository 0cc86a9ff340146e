"""Every public method of routing and runs has a command, or a reason here for having none."""

import inspect

import pytest

from onceward import Channel, Mailbox, Postbox
from onceward.api.agents import Agents
from onceward.api.dead_letters import DeadLetters
from onceward.api.peers import Peers
from onceward.features.channels.api import Channels
from onceward.features.limits.api import Limits
from onceward.features.mailboxes.api import Mailboxes
from onceward.features.runs.api import Queues, Runs
from onceward.features.schedules.api import Schedules
from onceward.ops.cli.app import COMMANDS

CODE = "needs code of the caller's: "
VERBS: dict[type, dict[str, str]] = {
    Channels: {
        "create": "channel create",
        "ensure": "channel create",
        "get": "channel show",
        "list": "channel ls",
    },
    Channel: {
        "info": "channel show",
        "members": "channel ls",
        "join": "channel join",
        "add": "channel add",
        "add_many": "channel add",
        "leave": "channel leave",
        "remove": "channel remove",
        "subscribe": "channel subscribe",
        "unsubscribe": "channel unsubscribe",
        "pause": "channel pause",
        "resume": "channel resume",
        "drain": "channel drain",
        "close": "channel close",
        "delete": "channel delete",
        "send": "channel send",
        "respond": "channel send",
        "acknowledge": "channel ack",
        "detach": "channel recv",
        "attach": "channel ack",
        "acknowledgments": "channel acks",
        "receive": "channel recv",
        "messages": "channel recv",
        "history": "channel history",
    },
    Agents: {
        "register": "agents register",
        "leave": "agents leave",
        "list": "agents ls",
        "subscribe": "agents subscribe",
        "unsubscribe": "agents unsubscribe",
    },
    Peers: {
        "register": "peers add",
        "allow": "peers allow",
        "forget": "peers forget",
        "list": "peers ls",
        "get": "peers ls",
        "reset": "peers reset",
        "ping": "peers ping",
        "subscribe": "peers subscribe",
        "unsubscribe": "peers unsubscribe",
    },
    Mailboxes: {
        "ensure": "mailbox ensure",
        "create": "mailbox ensure",
        "open": "mailbox show",
        "list": "mailbox ls",
    },
    Mailbox: {
        "send": "mailbox send",
        "delete": "mailbox delete",
        "replay": "mailbox read",
        "query": "mailbox query",
        "tail": "mailbox tail",
        "count": "mailbox show",
        "cursor": "mailbox read",
        "reset": "mailbox reset",
        "lease": "mailbox read",
        "receive": "mailbox read",
        "exactly_once": f"{CODE}the handler whose effects commit with the mark",
    },
    Postbox: {
        "poll": "poll",
        "tail": "tail",
        "expire": "expire",
        "status": "status",
        "stats": "stats",
        "flush": "relay",
        "history": "history",
        "thread": "thread",
        "search": "search",
        "query": "sql",
        "send": "send",
        "send_many": f"{CODE}the bodies",
        "publish": "publish",
        "ask": f"{CODE}the class of the reply",
        "request": f"{CODE}the ticket",
        "result": f"{CODE}the ticket",
        "progress": f"{CODE}the ticket",
        "receive": "recv",
        "messages": "recv",
        "begin": f"{CODE}what the transaction does",
        "on": f"{CODE}the hook",
        "observe": f"{CODE}the observer",
        "resolve": "send",
        "cancel": f"{CODE}the id of a message just sent",
        "check": "check",
        "health": "doctor",
        "repair": "doctor",
        "accept": f"{CODE}the listener",
        "pause": "pause",
        "resume": "resume",
        "run_until_idle": "relay",
        "run_maintenance": "work",
        "stop": f"{CODE}the open postbox",
        "close": f"{CODE}the open postbox",
        "session": f"{CODE}what is said in it",
    },
    Schedules: {
        "add": "schedules add",
        "list": "schedules ls",
        "get": "schedules ls",
        "remove": "schedules remove",
        "pause": "schedules pause",
        "resume": "schedules resume",
        "run_now": "schedules run",
    },
    Limits: {
        "set": "limits set",
        "remove": "limits remove",
        "list": "limits ls",
        "fullness": "limits fullness",
        "rate": "limits rate",
        "accept_rate": "limits accept-rate",
        "file": "limits file",
        "drops": "limits drops",
    },
    DeadLetters: {
        "list": "dead ls",
        "get": "dead show",
        "replay": "dead replay",
        "replay_all": "dead replay",
        "discard": "dead discard",
        "discard_all": "dead discard",
        "purge": "dead purge",
    },
    Queues: {
        "list": "queue ls",
        "get": "queue ls",
        "waiting": "queue ls",
        "set": "queue mode",
        "reorder": "queue reorder",
        "remove": "queue remove",
        "pause": "queue pause",
        "resume": "queue resume",
        "dissolve": "queue dissolve",
    },
    Runs: {"list": "runs ls", "get": "runs show", "abort": "runs abort"},
}


@pytest.mark.parametrize("of", VERBS)
def test_every_verb_has_a_command(of: type) -> None:
    """The table names all public calls, and commands that there are."""
    calls = {
        name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")
    }

    assert calls == VERBS[of].keys()
    assert (
        set()
        == {command for command in VERBS[of].values() if not command.startswith(CODE)}
        - COMMANDS.keys()
    )
