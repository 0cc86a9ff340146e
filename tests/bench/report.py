"""The benchmark page: the measured rows, kept beside the page and plot written from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.curves import curves
from tests.bench.plot import plot
from tests.bench.show import line, number

FOLDER: Final = Path("docs/reference")
NAMES: Final = {
    "rows": "benchmarks.json",
    "page": "benchmarks.md",
    "plot": "benchmarks.svg",
    "curves": "benchmarks-growth.svg",
}

HEAD: Final = """# Benchmarks

What the library costs over the same work written by hand. Every case runs the hand-written rival \
*in the same run, in
turns* with ours (A B A B, medians of the pairwise ratios), because absolute rates of a shared \
machine move by half
between minutes and ratios of neighbours do not. Bodies are typed messages of 512 bytes of JSON.

Measured on {machine}.
The speed of a shared machine moves: compare within a table, whose rows are of one run for each \
build of Python. Run one
case on your machine with `python -m tests.bench send` (`--json` for one object per row, \
`--folder` to choose the disk, `--page` to write its
rows into this page), or all of them with `report`, which writes this page.

A Python that was not compiled with `--enable-optimizations` runs our code 8 to 16 % slower, \
and SQLite as fast.

![Messages a second through each system, one at a time](benchmarks.svg)

How each was measured stands under [other queues](#other-queues).

`safe` syncs every commit and survives a power cut; `fast` survives the death of the process. \
A goal that is missed is
printed as missed.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, the cases under it, and what they do."""

    title: str
    cases: tuple[str, ...]
    prose: str


SECTIONS: Final = (
    Section(
        title="Sending one by one",
        cases=("send",),
        prose="One caller, one message, one commit. By hand: a prepared tuple, `INSERT`, `COMMIT`.",
    ),
    Section(
        title="Sending a hundred at a time",
        cases=("send-many",),
        prose=(
            "One commit per hundred. By hand: `executemany` over tuples that were built before "
            "the clock starts."
        ),
    ),
    Section(
        title="Many callers",
        cases=("group-threads", "group-tasks"),
        prose="""64 threads, then 64 asyncio tasks, each waiting for its own durable commit. \
By hand: one caller, one commit per
message. `worst_ms` is the longest that any call took.""",
    ),
    Section(
        title="From process to process",
        cases=("deliver",),
        prose="""Sent in hundreds, carried by file, handled with one row written, \
acknowledged back at the sender. By hand: the same
two processes on apsw with outbox, inbox, processed marks and acknowledgements, and nothing else: \
no order, leases,
retries, digests or receipts.""",
    ),
    Section(
        title="On slower disks",
        cases=("slow-disk",),
        prose="""One message at a time on a disk whose sync takes 1 ms, then 5 ms, as most \
do: both sides wait that long before each sync.
Sent; sent to oneself, received and acknowledged; the same between two agents. By hand: one, two \
and four commits. `syncs` is how
often the disk was waited for, for a message.""",
    ),
    Section(
        title="Over HTTP",
        cases=("http", "http-single", "http-wake", "http-exchange", "dead-peers"),
        prose="""The same two processes, with parcels signed both ways over HTTP on loopback. \
`raw_rate` is the same messages by file,
`cpu_ratio` compares the processor time of both ends. Then one by one, each acknowledged before \
the next is sent: `acked_more_ms` is
what the median takes longer than by file; and one by one up to the commit of the handler, by \
`more_ms` longer than by file.
`http-exchange` is one parcel of one message and its answer, `raw_rate` an echo of its bytes by \
the same client and server;
`cpu_ratio` compares what both ends compute. At last one by one beside a thousand peers that take \
connections and never answer.""",
    ),
    Section(
        title="Through a NATS server",
        cases=("nats",),
        prose="""The same two processes, with a server between them that syncs every message \
(`sync_interval: always`). `raw_rate` is
what `beside` names: the same messages by file, then JetStream alone, published, fetched and \
acknowledged with
confirmation in hundreds, where nothing is kept or handled behind it.""",
    ),
    Section(
        title="Waking up",
        cases=("wake", "idle"),
        prose="""From the call to the commit of the other process's handler, both idle before, \
without any polling. Then the
processor time of a process that only watches its postboxes, with the default settings.""",
    ),
    Section(
        title="Behind a backlog",
        cases=("backlog",),
        prose=(
            "Packing and settling one message on its way out, claiming and settling one on its "
            "way in, in files that hold more and more."
        ),
    ),
    Section(
        title="Growth",
        cases=("growth",),
        prose="""![Processor time of each step, by size](benchmarks-growth.svg)

The same steps in files of ever more messages, in homes of ever more agents, and with ever more \
sessions and schedules: the least
processor time of a step, and how much that is of the same step at the smallest size. The dashed \
line is the goal: a rate that stays
within a fifth. `python -m tests.bench growth` needs 5 GB of disk; with `--size 1000000` the \
largest file has a tenth of the messages.""",
    ),
    Section(
        title="Topics",
        cases=("topics",),
        prose="""Ten thousand subscriptions, half of them exact, the rest with wildcards: \
how many topics one core matches, and how long
the plain rule, tried on every subscription, takes for one.""",
    ),
    Section(
        title="One message for many",
        cases=("fanout",),
        prose="""A channel with ten thousand participants: one send, one commit, one stored body. \
By hand: the same rows in one
transaction, a body in each.""",
    ),
    Section(
        title="One message for each of many",
        cases=("recipients", "recipients-beyond"),
        prose="""One message for each of a thousand recipients' files, delivered; the ratio is to \
the same with ten recipients, and
`kb_each` by how much a process of its own grows for each of these files: 128 of them keep their \
schema. In the second row only a tenth of the files may be open, as 1,024
of ten thousand; `cpu_ms` is the processor's time for a message, from its send until it is \
settled.""",
    ),
    Section(
        title="A large body",
        cases=("large-body",),
        prose="""One message of 900 kB at a time, sent, received and acknowledged between two \
agents: the least processor time of a message.
By hand: the same two files, with outbox, inbox and acknowledgement, and the body read as the same \
model.""",
    ),
    Section(
        title="A step",
        cases=("step",),
        prose="""One step of a handler whose function returns 512 bytes at once, on the disk of \
the machine, then on one whose sync takes 1 ms
longer. By hand: `INSERT` and `COMMIT` of the same result into a table with a unique name. `times` \
is how much longer ours takes, `cpu_us`
the processor's time of the calling thread.""",
    ),
    Section(
        title="Several processes on one file",
        cases=("processes",),
        prose="""A backlog in twenty lanes, handled by one, two and three processes; \
the handler writes one row, so that the file is the
limit and another process can only help while this one decodes. `ratio` is to one process, \
`messages_a_commit` how many share one.""",
    ),
    Section(
        title="A mailbox shared out",
        cases=("claim-group", "claim-wake"),
        prose="""Five processes lease, handle and settle the messages of one mailbox. \
Then how long after a commit a member that waits
in another process has the message.""",
    ),
    Section(
        title="Looking back",
        cases=("history",),
        prose="""Pages of a hundred out of a file of a million messages, \
with the count of all that match. By hand: the same rows and the
same count, by statements written for each filter; a time has no index that a statement could \
use.""",
    ),
    Section(
        title="Sessions with runs",
        cases=("runs-collect", "runs-followup", "runs-begin"),
        prose="""A backlog of a hundred sessions through two modes. By hand: \
one thread that commits each run's end together with the next
one's beginning. Then the time from `send` to the first line of the handler in another process \
that has nothing else to do.""",
    ),
    Section(
        title="Fleets",
        cases=("fleet", "fleet-planning", "fleet-reconcile", "fleet-lanes", "fleet-log"),
        prose="""A hundred files as one table of Spark, beside one process that scans them; \
what ten thousand files cost
before anything is read; and every message of a fleet judged. `fleet-lanes` judges 400 pairs in \
one process without Spark, all lanes out of
order: `cpu_s` are the processor's seconds for a million messages, `raw_cpu_s` those of grouping \
the same rows in one temporary table of SQLite, and `times` is one over the other: 10.0 s were \
wanted where by hand takes 5.513 s, so the goal is 1.81 on any machine. `fleet-log` judges 6,000 \
messages of twenty days
from the log that was shipped after each day, beside their files: `times` is the CPU of the log
over that of the files.""",
    ),
    Section(
        title="Memory and import",
        cases=("memory", "import"),
        prose=(
            "The largest size of a process that drains a full outbox, and what "
            "`from onceward import Postbox` adds to bare Python."
        ),
    ),
    Section(
        title="What each promise adds",
        cases=("price",),
        prose="""The same work by hand, with one promise more in each line, \
up to the library itself; `ratio` is to the first line of its
kind. Times are medians for one message. In `deliver` one thread does one part after the other, \
so that nothing overlaps and
the parts add up. See \
[what the promises cost](../explanation/decisions.md#what-the-promises-cost).""",
    ),
    Section(
        title="Other queues",
        cases=("peers",),
        prose="""Enqueue, consume and acknowledge in one process: one by one (`rate`, \
full cycles per second), and as a
stream, as quickly as each library lets one. `commits` is how many transactions a message takes \
one by one, read from the files. Redis and NATS are servers beside it, and celery's \
and taskiq's workers are in it; DBOS starts a
workflow for each message. `pip install 'onceward[bench]'` brings them all. \
`ours_over_theirs` compares neighbours in time. \
Ours does more for a
message: two boxes, a parcel, a handler's transaction and a receipt. These are other products, \
none wins at everything,
and the durability beside each is part of the number.""",
    ),
    Section(
        title="Other queues, in two processes",
        cases=("peers-apart",),
        prose="""The same systems, with a process that enqueues and another one that consumes and \
acknowledges; `waits` says how
that one learns of a message, its cheapest way on this page. One by one, the next message is \
enqueued when the first process has been told that
the last one is acknowledged. Two agents have a file each, and the outcome comes back to the \
sender's; other systems share one file or one
server. To measure these two tables with another build of Python, run \
`python -m tests.bench peers --page` with it.""",
    ),
)

SHOWN: Final = frozenset(case for section in SECTIONS for case in section.cases)
HIDDEN: Final = {"case", "goals", "machine"}


def measured(rows: Iterable[dict[str, Any]], folder: Path = FOLDER) -> None:
    """Take the rows as they come, say each, and write rows, page and plot into *folder*."""
    _write(list(_said(rows)), folder)


def merged(rows: Iterable[dict[str, Any]], folder: Path = FOLDER) -> None:
    """
    Do the same with the rows of one case, beside the other rows of the page.

    They take the place of those that are of the same case and build of Python.
    """
    found = list(_said(rows))
    new = {_source(row) for row in found}
    kept = json.loads((folder / NAMES["rows"]).read_text(encoding="utf-8"))
    _write([*(row for row in kept if _source(row) not in new), *found], folder)


def _said(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        sys.stdout.write(f"{line(row)}\n")
        sys.stdout.flush()
        yield row


def _write(rows: list[dict[str, Any]], folder: Path) -> None:
    (folder / NAMES["rows"]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for name, text in written(rows).items():
        (folder / name).write_text(text, encoding="utf-8")


def _source(row: dict[str, Any]) -> tuple[str, str]:
    return row["case"], row["machine"].get("build", "")


def written(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the page and the plot of these rows, by file name."""
    parts = [HEAD.format(machine=_machine(rows[0]["machine"]))]
    for section in SECTIONS:
        found = [row for row in rows if row["case"] in section.cases]
        if found:
            parts.append(f"## {section.title}\n\n{section.prose}\n\n{table(found)}")
    made = {NAMES["page"]: "\n".join(parts), NAMES["plot"]: plot(rows)}
    if any(row["case"] == "growth" for row in rows):
        made[NAMES["curves"]] = curves(rows)
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """
    Return rows as a Markdown table: the columns that any of them fills, then the goals.

    Rows of several builds of Python name theirs.
    """
    builds = [_python(row["machine"]) for row in rows]
    if len(set(builds)) > 1:
        rows = [row | {"python": build} for row, build in zip(rows, builds, strict=True)]
    columns = list(
        dict.fromkeys(
            name
            for row in rows
            for name, value in row.items()
            if name not in HIDDEN and value is not None
        )
    )
    first = ["case", *columns, "goals"]
    lines = [first, ["---"] * len(first)]
    lines += [
        [row["case"], *(_cell(row.get(name)) for name in columns), _goals(row)] for row in rows
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(value: Any) -> str:
    return "" if value is None else number(value)


def _goals(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {'≥' if 'at_least' in goal else '≤'} "
        f"{goal.get('at_least', goal.get('at_most'))} {'met' if goal['met'] else '**missed**'}"
        for name, goal in row["goals"].items()
    )


def _machine(facts: dict[str, Any]) -> str:
    disk = f"{facts['filesystem']} ({facts['sync_ms']} ms per synced write)"
    software = f"Python {_python(facts)}, apsw {facts['apsw']}"
    return (
        f"{facts['cpus']} cores, {facts['system']}, {disk},\n"
        f"{facts['scheduler']} scheduling, {software}"
    )


def _python(facts: dict[str, Any]) -> str:
    return f"{facts['python']} ({facts.get('build', 'build unknown')})"
