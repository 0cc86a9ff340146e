"""The reference page of fleets as Spark tables: columns, options, reasons."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import readers
from pieces import code, flow, page, table

from onceward.fleet import columns, opening, spark
from onceward.fleet.spark import options, sink

SOURCE = Path(spark.__file__)
LISTED = re.compile(
    r'(?P<before>\A""".+?^Below are options.+?\n)(?P<old>.*?)(?P<after>""")',
    re.DOTALL | re.MULTILINE,
)
"""The part of the package's docstring that is generated."""
OWN = {
    "_db": "path of the file",
    "_agent": "the agent whose file it is",
    "_seq": "number of the row in its file; where the view has no sequence, its place in this "
    "reading",
    "_epoch": "in a stream: how often the file was found restored or replaced; else 0",
    "body": "the message's body as JSON text",
    "body_bytes": "the message's body, where it was sent as bytes",
}
EVIDENCE = {
    "sender": "agent that sent it; NULL in the row of a file",
    "recipient": "agent that it is for; in the row of a file what it says of itself as JSON, or "
    "the error",
    "id": "message id; in the row of a file its path",
    "side": "source of the row: 0 the file itself, 1 outbox, 2 the sender's dead letters, 3 "
    "inbox, 4 a dedup record, 5 the recipient's dead letters, 10 a second message with other "
    "contents",
    "state": "how far it had come, as a number: see `onceward.fleet.states`",
    "seq": "number of the row in its view",
    "lane": "priority and lane",
    "at": "when it was sent, accepted or processed, in milliseconds since 1970",
    "sent": "when the peer had stored it, in milliseconds",
    "ended": "when the sender's row came to its end, in milliseconds",
    "expires": "the end of its time to live, in milliseconds",
    "file": "number of the file's id: copies of a file have the same",
}
AGENTS = {
    "agent": "the agent",
    "file_id": "random id of the file",
    "durability": "what a commit survives",
    "paused_at": "since when the file is paused",
    "opened_at": "when it was opened last",
    "created_at": "when the file was made",
    "schema_version": "its newest schema step",
}
QUARANTINE = {
    "path": "the file",
    "reason": "why it is not read, in one word",
    "detail": "the error of SQLite or of the system",
    "at": "when it was looked at",
}
NOTES = """
- Files are read in place, read-only, together with their WAL, also while their agents work. A
  statement is held for half a second at most, or for as long as Spark takes for a batch; with
  `snapshot`, for as long as the file is read, and its WAL grows meanwhile.
- A file is delivered whole or not at all, unless `mode` says otherwise: its rows wait, in memory
  or in a temporary file, until the last one was read. A file larger than a task is read page by
  page while the tasks are planned; if it breaks after that, the job fails.
- Spark does not tell a Python source which columns a query needs: `.select(...)` and `count(*)`
  read all columns of the frame. So `frame`, `body` and `body_bytes` are read only on request, and
  `columns` makes any query narrower.
- `CREATE TABLE sent USING onceward OPTIONS (table 'outbox', path '/fleet/**/*.db')` makes a table
  of the catalog, of these files at the time of each query. Its columns are those of its options:
  leave a column list out. Rows are sent by `df.write`, not by `INSERT`.
- SQLite puts its lock file (`-shm`) and an empty `-wal` beside a file that it reads. Read as the
  agents' own user, or with `copy=always`: a lock file of another user may keep an agent out.
- Paths are local to the driver and to every executor. Copies for an object store are made by
  SQLite's backup, or `VACUUM INTO`: a main file copied without its WAL misses what was committed
  last.
- A table that a file's schema does not have yet is empty for that file, a column is NULL. Rows of
  newer schemas are read as far as they have our columns.
- A stream reads each row once, in the state that it has then. To follow changes of state, set the
  agents' `transitions` and follow the table `transitions`: triggers write it in the commit of the
  change itself. Rows that retention prunes before they are read are not seen.
- A stream's positions are files in `manifests`: keep that folder and the checkpoint together;
  streams may share it. A file whose numbers went back, whose rows up to the position are others,
  or in whose place another file lies, is read again from its beginning under a new `_epoch`.
- `query.lastProgress` has the rows that wait, in all and of the hundred agents with most of them,
  as `lag` and `lag_by_agent` in the latest offset of the source.
- A stream fails, and continues at the next start, if a file is locked for longer than
  `busyTimeout`, or damaged or gone after its rows were planned for a micro-batch. One that is
  damaged or gone before is left out and logged, and read once it can be.
- Filters are applied by Spark behind the source; `where` and `columns` are what the source itself
  leaves out.
- `frame=variant` parses frames in Python, some 20,000 a second and core. Where there are many,
  read them as text and let Spark do it: `df.withColumn("frame", try_parse_json("frame"))`. Frames
  that are not JSON, or more than a VARIANT can hold, are NULL.
- Written rows pass through the driver: compressed, and together at most
  `spark.driver.maxResultSize`. With `send()`, or `commits=executors` behind
  `repartition("agent")`, they do not. Rows are spooled to disk by agent; those of one agent are in
  memory at a time, which are at most its `max_pending`. Equal rows are as many messages. Their ids
  depend on query, batch and row only.
- A row that can never be sent (no recipient, an unknown one, a body that is not JSON, a key that
  stands for another message, an agent without a file) fails its batch, or goes to
  `badRecordsPath`: one file of JSON lines for each query, batch and agent's file, with `path`,
  `error`, `reason` and `record`. It is written before the others are committed, and again if the
  batch is repeated. Column `pending` of table `agents` is the lag of each agent.
- A query must give a batch the same rows each time (no `uuid()`, no `rand()` without a seed), and
  its batch numbers only go up: a file refuses a batch that it has seen with other rows, or that
  is older than all that it has a record of.
- A file of an older schema is not written to: that would migrate it under an agent that does not
  expect it.
"""
WRITTEN = {
    "agent": "the sender; its file is looked for in `path`",
    "_db": "instead of `agent`: the sender's file",
    "recipient": "agent it goes to; required",
    "body": "text is JSON, BINARY is sent as bytes, structs and arrays as themselves; required",
    "session": "conversation; `default` where NULL",
}


def fleet_page(meanings: dict[str, dict[str, str]]) -> str:
    """Return the page of the format ``onceward``."""
    return page(
        "Fleets on Spark",
        flow(
            "`python3 -m pip install 'onceward[spark]'` brings Spark and a Java. Format "
            "`onceward` reads agents' files as tables, follows",
            "them as streams, and sends rows as messages. Everywhere below, a fleet is a glob, a "
            "folder, or a list of these. Braces are alternatives: `/fleet/{a,b}/*.db`.",
        ),
        "## Functions of `onceward.fleet.spark`",
        *_functions(),
        "## Options of reading",
        flow(
            '`spark.read.format("onceward").option("table", "outbox").load("/fleet/**/*.db")`; '
            "`readStream` likewise.",
            "Spark does not take both a `path` option and a path in `load`, so the table is "
            "named by an option.",
        ),
        _options(),
        "## Options of writing",
        flow(
            '`df.write.format("onceward").mode("append").save("/fleet/**/*.db")`, or '
            "`writeStream`.",
            "Each file gets its messages of one batch in one transaction, with a receipt in its "
            "table `_onceward_spark_batches`.",
        ),
        table(
            ("option", "meaning"),
            *((code(name), meaning) for name, meaning in sink.WRITING.items()),
        ),
        "Columns of the rows:",
        table(("column", "meaning"), *((code(name), _written(name)) for name in sink.COLUMNS)),
        "## What to know",
        NOTES,
        "## Why a file is not read",
        table(
            ("reason", "meaning"),
            *((code(reason), meaning) for reason, meaning in opening.REASONS.items()),
        ),
        "## Tables",
        *(_table(name, found, meanings) for name, found in columns.tables().items()),
    )


def listed() -> str:
    """Return the package's source, in whose docstring ``pydoc`` finds options and tables."""
    source = SOURCE.read_text(encoding="utf-8")
    lists = {
        "Options of reading": [options.spelt(each.name) for each in fields(options.Options)],
        "Options of writing": list(sink.WRITING),
        "Columns that are written": list(sink.COLUMNS),
        **{f"Table {name}": list(found.columns) for name, found in columns.tables().items()},
    }
    text = "".join(_wrapped(title, words) for title, words in lists.items())
    return LISTED.sub(lambda found: f"{found['before']}{text}{found['after']}", source, count=1)


def _wrapped(title: str, words: list[str]) -> str:
    return f"\n{title}:\n" + textwrap.indent(textwrap.fill(", ".join(words), 92), "    ") + "\n"


def _functions() -> list[str]:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    return [
        f"### `{name}()`\n\n```py\n{readers.signature(node, name)}\n```\n\n{readers.docs(node)}"
        for name in spark.__all__
        for node in tree.body
        if isinstance(node, readers.Function) and node.name == name
    ]


def _options() -> str:
    notes = {
        field.name: " ".join(field.note.split())
        for field in readers.fields(readers.find(options.Options))
    }
    rows = [
        (code(options.spelt(each.name)), code(_value(each.default)), notes[each.name])
        for each in fields(options.Options)
    ]
    return table(("option", "default", "meaning"), *rows)


def _value(default: Any) -> str:
    return "" if default in ("", (), None) else json.dumps(default)


def _written(name: str) -> str:
    return WRITTEN.get(name) or "as in every `send`"


def _table(name: str, found: columns.Table, meanings: dict[str, dict[str, str]]) -> str:
    view = columns.views().get(name, "")
    own = {
        "evidence": EVIDENCE,
        "agents": AGENTS | meanings["onceward_stats"],
        "quarantine": QUARANTINE,
    }
    known = own.get(name, meanings.get(view, {}))
    meant = {
        column: OWN.get(column) or known.get(column) or _elsewhere(column, meanings)
        for column in found.columns
    }
    rows = [(code(column), kind.upper(), meant[column]) for column, kind in found.columns.items()]
    first = {
        "agents": "One row for each file, with its numbers of now.",
        "evidence": "All that each file says of its messages, in numbers and of one moment, which "
        "`reconcile` reads; and a row for each file, read or not.",
        "quarantine": "The files that cannot be read; every page and every row of all files is "
        "looked at.",
    }.get(name) or f"`{view}` of every file: {meanings[view]['']}"
    asked = [code(column) for column in found.columns if column in columns.ON_REQUEST]
    note = f"\n\nRead only where `columns` names them: {', '.join(asked)}." if asked else ""
    return f"### {name}\n\n{first}{note}\n\n{table(('column', 'type', 'meaning'), *rows)}"


def _elsewhere(column: str, meanings: dict[str, dict[str, str]]) -> str:
    views = (
        "onceward_outbox",
        "onceward_inbox",
        "onceward_processed_messages",
        "onceward_dead_letters",
    )
    return next((meanings[view][column] for view in views if column in meanings[view]), "")
