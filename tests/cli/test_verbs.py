"""Every public method of routing and runs has a command, or a reason here for having none."""

import inspect

import pytest

from onceward import Channel, Mailbox, Postbox
from onceward.api.agent_file import AgentFile
from onceward.api.agents import Agents
from onceward.api.dead_letters import DeadLetters
from onceward.api.peers import Peers
from onceward.features.channels.api import Channels
from onceward.features.groups.api import Groups
from onceward.features.limits.api import Limits
from onceward.features.mailboxes.api import Mailboxes
from onceward.features.polling.api import Sessions
from onceward.features.pools.api import Pools
from onceward.features.runs.api import Runs
from onceward.features.schedules.api import Schedules
from onceward.ops.cli.app import COMMANDS

CODE = "needs code of the caller's: "
VERBS: dict[type, dict[str, str]] = {
    Channels: {
        "create": "channel create",
        "ensure": "channel create",
        "get": "channel show",
        "list": "channel ls",
        "delete": "channel delete",
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
        "send": "channel send",
        "respond": "channel send",
        "acknowledge": "channel ack",
        "detach": "channel receive",
        "attach": "channel ack",
        "acknowledgments": "channel acks",
        "receive": "channel receive",
        "receive_each": "channel receive",
        "history": "channel history",
    },
    Agents: {
        "register": "agents register",
        "remove": "agents remove",
        "list": "agents ls",
        "subscribe": "agents subscribe",
        "unsubscribe": "agents unsubscribe",
    },
    Peers: {
        "add": "peers add",
        "allow": "peers allow",
        "remove": "peers remove",
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
        "get": "mailbox show",
        "list": "mailbox ls",
    },
    Mailbox: {
        "send": "mailbox send",
        "discard": "mailbox discard",
        "scan": "mailbox read",
        "query": "mailbox query",
        "count": "mailbox show",
        "read": "mailbox read",
        "reset": "mailbox reset",
        "lease": "mailbox read",
        "receive": "mailbox read",
        "handle": f"{CODE}the handler whose effects commit with the mark",
    },
    Postbox: {
        "accept": f"{CODE}the listener",
        "flush": "relay",
        "history": "history",
        "thread": "thread",
        "journey": "show",
        "search": "search",
        "query": "sql",
        "send": "send",
        "send_many": f"{CODE}the bodies",
        "publish": "publish",
        "broadcast": "send",
        "ask": f"{CODE}the class of the reply",
        "request": f"{CODE}the ticket",
        "result": f"{CODE}the ticket",
        "gather": f"{CODE}the tickets",
        "follow": f"{CODE}the ticket",
        "progress_of": f"{CODE}the ticket",
        "status": "show",
        "receive": "receive",
        "receive_one": "reply",
        "attach": f"{CODE}the handle",
        "receive_each": "receive",
        "begin": f"{CODE}what the transaction does",
        "on": f"{CODE}the hook",
        "state": "send",
        "cancel": "cancel",
        "cancel_all": "cancel",
        "run_until_idle": "relay",
        "stop": f"{CODE}the open postbox",
        "close": f"{CODE}the open postbox",
        "session": f"{CODE}what is said in it",
    },
    AgentFile: {
        "check": "check",
        "expire": "maintain",
        "health": "doctor",
        "pause": "pause",
        "repair": "doctor",
        "resume": "resume",
        "run_maintenance": "work",
        "stats": "stats",
    },
    Groups: {
        "begin": f"{CODE}what the group sends",
        "get": "groups ls",
        "list": "groups ls",
        "messages": "groups ls",
    },
    Pools: {
        "join": "pools join",
        "leave": "pools leave",
        "drain": "pools drain",
        "add": "pools add",
        "remove": "pools remove",
        "release": "pools release",
        "list": "pools ls",
    },
    Schedules: {
        "add": "schedules add",
        "list": "schedules ls",
        "get": "schedules ls",
        "edit": "schedules edit",
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
        "drops": "limits drops",
    },
    DeadLetters: {
        "list": "dead ls",
        "get": "show",
        "edit": "dead edit",
        "checks": "dead edit",
        "replay": "dead replay",
        "replay_all": "dead replay",
        "discard": "dead discard",
        "discard_all": "dead discard",
    },
    Sessions: {
        "stats": "sessions stats",
        "tail": "tail",
        "poll": "poll",
    },
    Runs: {
        "list": "runs ls",
        "get": "runs show",
        "abort": "runs abort",
        "queues": "runs queues",
        "queue": "runs queues",
        "waiting": "runs queues",
        "set": "runs set",
        "reorder": "runs reorder",
        "discard": "runs discard",
        "pause": "runs pause",
        "resume": "runs resume",
        "remove": "runs remove",
    },
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
