"""The table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Final

from cyclopts import App, CycloptsError, UnusedCliTokensError
from rich.console import Console

from onceward.cli.exit_codes import DONE, FAILED, SIGNAL, USAGE, Failed, Usage, code_of, problem
from onceward.cli.output import note
from onceward.errors import OncewardError

HELP: Final = """
Exactly-once mail between agents, in one SQLite file each.

A command works on one agent's file: --db FILE, or --agent NAME for agents/NAME.db in the home folder (ONCEWARD_HOME, else the
current one), or the environment's ONCEWARD_DB, or its ONCEWARD_AGENT. Only work, relay, doctor, check and migrate are given FILE
as a word of its own. Spans are written 5m, 2h30m, 250ms, 7d or in seconds.

On a terminal commands print tables, elsewhere tab-separated lines without a header; --json prints one document with RFC 3339
times and errors as objects on stderr.

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing there, 4 timed out, 5 conflict, 6 partly done, 7 refused (paused, full, wrong
schema or file), 130 and 143 interrupted or terminated after a graceful stop.
"""

COMMANDS: Final = {
    "init": (
        "onceward.cli.init:init",
        "Create an agent's file, HOME/agents/NAME.db, and print its path.",
    ),
    "send": ("onceward.cli.send:send", "Commit a message into the outbox and print its id."),
    "recv": (
        "onceward.cli.recv:recv",
        "Take the next message, print it, and mark it as processed.",
    ),
    "poll": (
        "onceward.cli.poll:poll",
        "Take what came since the last poll and print it, one JSON object for each line.",
    ),
    "tail": (
        "onceward.cli.poll:tail",
        "Print the newest messages of a session, the oldest of them first, one JSON object for each line; moves no cursor.",
    ),
    "expire": (
        "onceward.cli.poll:expire",
        "End the messages that have outlived their time to live, and print how many.",
    ),
    "status": (
        "onceward.cli.poll:status",
        "Print how each session stands, as JSON: messages, expired ones, topics, bytes, and how far it was polled.",
    ),
    "channel create": (
        "onceward.cli.channel:create",
        "Make a channel that our agent owns, and print its name.",
    ),
    "channel ls": (
        "onceward.cli.channel:ls",
        "List the channels of the home, or who takes part in one.",
    ),
    "channel show": (
        "onceward.cli.channel:about",
        "Show a channel: its type, its state and how it behaves.",
    ),
    "channel join": ("onceward.cli.channel:join", "Take part in a channel."),
    "channel leave": ("onceward.cli.channel:leave", "Take part in a channel no longer."),
    "channel add": (
        "onceward.cli.channel:add",
        "Let agents take part in a channel that our agent owns, all or none, and print how many are new.",
    ),
    "channel remove": (
        "onceward.cli.channel:remove",
        "Let an agent take part no longer in a channel that our agent owns.",
    ),
    "channel subscribe": (
        "onceward.cli.channel:subscribe",
        "Have what is sent in a channel under a pattern of topics; who takes no part yet becomes an observer.",
    ),
    "channel unsubscribe": (
        "onceward.cli.channel:unsubscribe",
        "End a subscription to a channel's topics.",
    ),
    "channel pause": ("onceward.cli.channel:pause", "Pause a channel that our agent owns."),
    "channel resume": (
        "onceward.cli.channel:resume",
        "Go on where pause stopped; what waits at its senders is let go.",
    ),
    "channel drain": (
        "onceward.cli.channel:drain",
        "Take nothing more in a channel that our agent owns; what was sent is still delivered and read.",
    ),
    "channel close": (
        "onceward.cli.channel:close",
        "End a channel that our agent owns; what still waits at its senders becomes dead letters.",
    ),
    "channel delete": (
        "onceward.cli.channel:delete",
        "Forget a closed channel; its name may be used again.",
    ),
    "channel send": (
        "onceward.cli.channel_messages:send",
        "Send to all who are to have it, in one commit, and print the id that all copies carry.",
    ),
    "channel recv": (
        "onceward.cli.channel_messages:recv",
        "Take our agent's next message of a channel, print it, and mark it as processed; exit code 4 where none came.",
    ),
    "channel ack": (
        "onceward.cli.channel_messages:ack",
        "Say how far we have come with a message that recv left in our hands, and print the acknowledgment's id.",
    ),
    "channel acks": (
        "onceward.cli.channel_messages:acks",
        "List how far its recipients have come with a message of ours.",
    ),
    "channel history": (
        "onceward.cli.channel_messages:history",
        "List past messages of a channel, newest first; consumes nothing.",
    ),
    "publish": (
        "onceward.cli.channel_messages:publish",
        "Send to every agent that subscribed to a topic, outside of any channel, and print the ids.",
    ),
    "mailbox ensure": (
        "onceward.cli.mailbox:ensure",
        "Make a mailbox in our file if there is none, and print what it is known by.",
    ),
    "mailbox ls": (
        "onceward.cli.mailbox:ls",
        "List the public mailboxes of the home; private ones are never listed.",
    ),
    "mailbox send": (
        "onceward.cli.mailbox:send",
        "Send a message to a mailbox and print its id; what cannot be delivered now stays in our outbox.",
    ),
    "mailbox read": (
        "onceward.cli.mailbox:read",
        "Read a mailbox in the mode that is named, and print messages, one JSON object for each line.",
    ),
    "mailbox query": (
        "onceward.cli.mailbox:query",
        "Print messages of a mailbox, newest first, one JSON object for each line; changes nothing.",
    ),
    "mailbox show": (
        "onceward.cli.mailbox:about",
        "Show a mailbox: whose it is, when it ends, and how many messages are there.",
    ),
    "mailbox tail": (
        "onceward.cli.mailbox:tail",
        "Print the newest messages of a mailbox, the oldest of them first, one JSON object for each line; changes nothing.",
    ),
    "mailbox delete": (
        "onceward.cli.mailbox:delete",
        "Take a message away from all readers of a mailbox; exit code 3 if it is not there.",
    ),
    "ls": (
        "onceward.cli.ls:ls",
        "List queues by state, lanes, or the messages of a box; consumes nothing.",
    ),
    "show": ("onceward.cli.show:show", "Show everything that is known about a message."),
    "stats": (
        "onceward.cli.stats:stats",
        "Print the present numbers, and the totals since the file was made.",
    ),
    "agents ls": (
        "onceward.cli.agents:ls",
        "List the other agents that are reached by what is sent to all.",
    ),
    "agents register": (
        "onceward.cli.agents:register",
        "Take part: from now on what is sent to all reaches our agent too, wherever its file lies.",
    ),
    "agents leave": (
        "onceward.cli.agents:leave",
        "Take part no more, before the agent is retired: what is sent to all passes it by.",
    ),
    "agents subscribe": (
        "onceward.cli.agents:subscribe",
        "Have what anybody else in the home publishes under a pattern of topics.",
    ),
    "agents unsubscribe": (
        "onceward.cli.agents:unsubscribe",
        "End a subscription to what others publish.",
    ),
    "peers ls": ("onceward.cli.peers:ls", "List the peers."),
    "peers add": (
        "onceward.cli.peers:add",
        "Reach an agent at a url from now on; its breaker closes.",
    ),
    "peers forget": (
        "onceward.cli.peers:forget",
        "Drop a peer's url; mail for it waits, and what was agreed with it is kept.",
    ),
    "peers reset": (
        "onceward.cli.peers:reset",
        "Try a peer again at once, whatever its breaker or its backoff say.",
    ),
    "peers subscribe": (
        "onceward.cli.peers:subscribe",
        "Let a peer have what our agent publishes under a pattern of topics.",
    ),
    "peers unsubscribe": (
        "onceward.cli.peers:unsubscribe",
        "End a peer's subscription to what our agent publishes.",
    ),
    "dead ls": ("onceward.cli.dead:ls", "List dead letters, oldest first."),
    "dead show": ("onceward.cli.dead:show", "Show a dead letter whole, with its frame."),
    "dead replay": (
        "onceward.cli.dead:replay",
        "Put dead letters back on their way and print their ids.",
    ),
    "dead discard": (
        "onceward.cli.dead:discard",
        "Forget dead letters and print their ids; what is forgotten cannot be replayed.",
    ),
    "dead purge": (
        "onceward.cli.dead:purge",
        "Forget the dead letters that died long ago, and print their ids.",
    ),
    "runs ls": ("onceward.cli.runs:ls", "List runs, newest first."),
    "runs show": (
        "onceward.cli.runs:show",
        "Show a run whole: its messages, what it left behind, what it returned.",
    ),
    "runs abort": (
        "onceward.cli.runs:abort",
        "End an open run, as a steering message does.",
    ),
    "queue ls": (
        "onceward.cli.queue:ls",
        "List the queues of sessions with runs, or what waits in one of them.",
    ),
    "queue mode": (
        "onceward.cli.queue:mode",
        "Set how a session queues, also while messages wait.",
    ),
    "queue reorder": (
        "onceward.cli.queue:reorder",
        "Put waiting messages to the front, in the order given.",
    ),
    "queue remove": (
        "onceward.cli.queue:remove",
        "Drop waiting messages, with a reason that SQL can read.",
    ),
    "queue pause": (
        "onceward.cli.queue:pause",
        "Begin no further run of a session; mail is taken in, the open run goes on.",
    ),
    "queue resume": ("onceward.cli.queue:resume", "Go on where pause stopped."),
    "queue dissolve": (
        "onceward.cli.queue:dissolve",
        "Serve sessions of a pattern by runs no more: for handlers that were taken out of the code.",
    ),
    "history": (
        "onceward.cli.history:history",
        "List sent, received and dead messages, newest first; consumes nothing.",
    ),
    "thread": (
        "onceward.cli.history:thread",
        "List the conversation that a message belongs to, oldest first; consumes nothing.",
    ),
    "search": (
        "onceward.cli.history:search",
        "List messages whose body holds all words, best match first; the agent must have opted in.",
    ),
    "limits ls": ("onceward.cli.limits:ls", "List the limits there are."),
    "limits set": (
        "onceward.cli.limits:put",
        "Bound what may be promised and not settled in one scope, for every writer of the file.",
    ),
    "limits remove": ("onceward.cli.limits:remove", "Lift a limit; what only it held back leaves."),
    "limits fullness": ("onceward.cli.limits:fullness", "Print how full each bounded scope is."),
    "limits drops": ("onceward.cli.limits:drops", "List what policies dropped, newest first."),
    "limits rate": (
        "onceward.cli.limits:rate",
        "Send at most so many messages a second; 0 lifts the limit.",
    ),
    "limits accept-rate": (
        "onceward.cli.limits:accept_rate",
        "Take at most so many messages a second from each sender; 0 lifts the limit.",
    ),
    "limits file": (
        "onceward.cli.limits:file",
        "Take new messages only while less of the file is in use; 0 lifts the limit.",
    ),
    "work": ("onceward.cli.work:work", "Run an agent's handlers on its file until told to stop."),
    "relay": (
        "onceward.cli.relay:relay",
        "Deliver an agent's mail until told to stop, without running handlers.",
    ),
    "pause": (
        "onceward.cli.switch:pause",
        "Stop sending, delivering and handling, in all processes and durably.",
    ),
    "resume": ("onceward.cli.switch:resume", "Go on where pause stopped."),
    "migrate": (
        "onceward.cli.migrate:migrate",
        "Bring a file's schema up to this version and print the steps it took.",
    ),
    "check": (
        "onceward.cli.check:check",
        "Run the invariants over files, and over the mail between them, and print the offenders.",
    ),
    "doctor": (
        "onceward.cli.doctor:doctor",
        "Examine files and their surroundings; each finding names its cure.",
    ),
    "sql": ("onceward.cli.sql:sql", "Run a reading SQL statement on a read-only connection."),
    "fleet demo": (
        "onceward.cli.fleet:demo",
        "Make a fleet in which everything went wrong, and find every message of it.",
    ),
    "fleet reconcile": (
        "onceward.cli.fleet:reconcile",
        "Hold what all agents sent against what all agents received and processed.",
    ),
    "fleet archive": (
        "onceward.cli.fleet_jobs:archive",
        "Append what has ended to Parquet files by day, each message once.",
    ),
    "fleet metrics": (
        "onceward.cli.fleet_jobs:metrics",
        "Figures per agent and hour, and why messages died.",
    ),
    "fleet threads": (
        "onceward.cli.fleet_jobs:threads",
        "Conversations across agents, and who waited for whom.",
    ),
    "fleet graph": ("onceward.cli.fleet_jobs:graph", "Who talks to whom, out of a reconciliation."),
    "fleet replay": (
        "onceward.cli.fleet_jobs:replay",
        "Replay or discard dead letters in bulk, by a plan that is written first.",
    ),
    "fleet export": (
        "onceward.cli.fleet_jobs:export",
        "Conversations as JSON Lines, with parts blacked out.",
    ),
    "demo": (
        "onceward.cli.demo:demo",
        "Watch agents lose nothing while their processes are killed.",
    ),
    "prove": (
        "onceward.cli.clone:prove",
        "Try to break the promises; works in a clone.",
    ),
    "bench": (
        "onceward.cli.clone:bench",
        "Measure what the library costs on this machine; works in a clone.",
    ),
}
"""Import string and summary by full name; the module of a command is loaded when it is called."""

NOUNS: Final = {
    "channel": "Channels of the home.",
    "mailbox": "Mailboxes of the home.",
    "agents": "Agents of the home, and what they want of what others publish.",
    "peers": "Who is reached where.",
    "dead": "Messages that ended badly.",
    "runs": "Runs of sessions, open and past.",
    "queue": "What waits in sessions with runs.",
    "limits": "What bounds a file.",
    "fleet": "Many agents' files at once, on Spark.",
}
"""Commands that have verbs of their own."""


ELSEWHERE: Final = {
    "health": "doctor",
    "receive": "recv",
    "inbox": "ls inbox",
    "outbox": "ls outbox",
    "lanes": "ls lanes",
    "queues": "ls queues",
    "find": "show",
    "trace": "show",
    "inspect": "show",
    "explain": "doctor",
    "metrics": "stats",
    "pump": "relay --once",
    "flush": "relay --once",
    "replay": "dead replay",
    "subscribe": "agents subscribe",
    "retire": "agents leave",
}
"""Commands by words that the library or the pages have for what they do."""


def build(tokens: Sequence[str] = ()) -> App:
    """Return the program; the command that *tokens* call explains itself at length, the others in a line."""
    app = App(name="onceward", help=HELP, version=version("onceward"))
    nouns = {name: App(name=name, help=summary) for name, summary in NOUNS.items()}
    for noun in nouns.values():
        app.command(noun)
    called = {" ".join(tokens[:1]), " ".join(tokens[:2])}
    for full, (path, summary) in COMMANDS.items():
        of, _, verb = full.rpartition(" ")
        nouns.get(of, app).command(path, name=verb, help=None if full in called else summary)
    return app


def run(tokens: Sequence[str]) -> int:
    """Run one command; errors go to stderr, in words or as an object, and their kind is the exit code."""
    try:
        check_command(tokens)
        code = build(tokens)(
            list(tokens), exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except CycloptsError as error:
        _tell(Usage(_plainer(error)), tokens)
        return USAGE
    except OncewardError as error:
        _tell(error, tokens)
        return code_of(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # of a folder or a file that the command was to make or to read
        _tell(Failed(f"{error.filename or 'the system'}: {error.strerror or error}"), tokens)
        return FAILED
    except KeyboardInterrupt:
        return SIGNAL + 2
    return code if isinstance(code, int) else DONE


def check_command(tokens: Sequence[str]) -> None:
    """Raise Usage for a command that does not exist, without loading those that do."""
    for depth, given in enumerate(tokens[:2]):
        before = [*tokens[:depth]]
        there = {
            full.split()[depth]
            for full in COMMANDS
            if full.split()[:depth] == before and len(full.split()) > depth
        }
        if given.startswith("-") or not there:
            return
        if given not in there:
            near = (
                [ELSEWHERE[given]]
                if not before and given in ELSEWHERE
                else get_close_matches(given, there, 1)
            )
            msg = f"there is no command {' '.join([*before, given])!r}" + (
                f": did you mean {near[0]}?" if near else ""
            )
            raise Usage(msg)


def _plainer(error: CycloptsError) -> str:
    """Return what the parser says; where words were left over, what is meant with a file's name among them."""
    if isinstance(error, UnusedCliTokensError):
        left = " ".join(error.unused_tokens or [])
        return f"too many words: {left}" + (
            "; an agent's file is given as --db FILE" if ".db" in left else ""
        )
    return str(error).rstrip(".")


def _tell(error: OncewardError, tokens: Sequence[str]) -> None:
    if "--json" in tokens:
        sys.stderr.write(json.dumps(problem(error), indent=2) + "\n")
    else:
        note(f"onceward: {error}" + ("; see --help" if isinstance(error, Usage) else ""))


def pages() -> dict[str, str]:
    """Return the plain help text of the program and of every command, by full name."""
    names = ["", *NOUNS, *COMMANDS]
    return {f"onceward {name}".strip(): _page(name.split()) for name in names}


def _page(name: Sequence[str]) -> str:
    app = build(name)
    app.help_formatter = "plain"
    text = io.StringIO()
    app.help_print(
        list(name), console=Console(file=text, width=160, force_terminal=False, no_color=True)
    )
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"
