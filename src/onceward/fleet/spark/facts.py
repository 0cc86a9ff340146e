"""Group the evidence of all files by message, and judge it, by the SQL that both engines run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, expr

from onceward.fleet.coverage import READ, CoverageIndex, Reading
from onceward.fleet.facts import FACTS, KNOWN
from onceward.fleet.opening import FILE_STATES
from onceward.fleet.states import spelt
from onceward.fleet.verdict_sql import (
    ASKING_FILE,
    FINAL_VERDICT,
    FRAME,
    KEY,
    MINTED,
    MOMENTS,
    OPEN_VERDICTS,
    PROVISIONAL_VERDICT,
    RECIPIENT_SAYS,
    SENDER_SAYS,
    SEQUENCES,
    TEXTS,
)
from onceward.fleet.verdicts import Rules

FILE_STATE: Final = "max(CASE WHEN side = 0 THEN state ELSE 0 END)"
VERDICT: Final = (
    f"CASE WHEN sender IS NULL THEN {spelt('file_state', FILE_STATES, 'corrupt')}"
    f" ELSE {PROVISIONAL_VERDICT} END"
)
"""The verdict on a message; in the row of a file whether it was read."""
DDL: Final = ", ".join(
    f"{name} {kind}"
    for names, kind in (
        (TEXTS, "string"),
        (MOMENTS, "timestamp"),
        (("lane", *SEQUENCES, "file"), "bigint"),
    )
    for name in names
)
"""The columns of a message with its verdict, and the file that has a row of it."""
COVERAGE: Final = (
    "of_verdict string, of_sender string, of_recipient string, of_file bigint, known int,"
    " horizon_id string, pruned_id string, pruned_at bigint, upto_at bigint, horizon_at bigint"
)
CHOSEN: Final = f"sender is not null and not {MINTED}"
Owner = tuple[str, str, int, int]
"""Sender, recipient, a file of either, and the sender's file whose messages that file knows."""
OWNER: Final = "sender string, recipient string, file bigint, owner bigint"


def gather(said: DataFrame, *more: str) -> DataFrame:
    """
    Return one row per message with the evidence of each side.

    *more* columns tell messages with the same id apart.

    A file that was read, or could not be, is a row without a sender: what it says of
    itself, or what went wrong, stands as recipient.
    """
    rows = said.withColumn(
        "lane", expr("if(lane is null, null, xxhash64(sender, recipient, lane))")
    )
    sums = {"file_state": FILE_STATE} | {name: fact.grouped for name, fact in FACTS.items()}
    # Not grouped by file first: a file has two or three rows of a message, and grouping these
    # made rows wider than it made them fewer.
    return (
        rows.repartition(*KEY)
        .groupBy(*KEY, *more)
        .agg(*(expr(sql).alias(n) for n, sql in sums.items()))
        .where(f"sender IS NULL OR {KNOWN}")
    )


def state(facts: DataFrame, rules: Rules) -> DataFrame:
    """Return each message of ``gather`` with its verdict, or a question for the other files."""
    verdict = expr(VERDICT.format(cutoff=rules.cutoff, late=rules.late_ms))
    moments = ((name, "effect_at" if name == "processed_at" else name) for name in MOMENTS)
    return facts.withColumn("verdict", verdict).select(
        *KEY,
        "verdict",
        expr(SENDER_SAYS).alias("sender_says"),
        expr(RECIPIENT_SAYS).alias("recipient_says"),
        "waits_for",
        *(expr(f"timestamp_millis({at}) as {name}") for name, at in moments),
        "lane",
        *SEQUENCES,
        expr(ASKING_FILE).alias("file"),
    )


def readings(rows: Iterable[Mapping[str, Any]]) -> list[Reading]:
    """Return the files' facts about themselves, from the rows of ``state`` without a sender."""
    found: dict[str, Reading] = {}
    for row in rows:
        path, said = str(row["id"]), str(row["recipient"])
        one = Reading.of(path, said) if row["verdict"] == READ else None
        if one is None:
            found[path] = Reading(path, str(row["verdict"]), said)
        else:
            found.setdefault(path, one)
    return list(found.values())


def owners(stated: DataFrame, read: Iterable[Reading]) -> list[Owner]:
    """Return whose messages each file knows, of two tenants that may have chosen the same ids."""
    known = CoverageIndex(read)
    if not known.twins:
        return []
    pairs = stated.where(CHOSEN).select("sender", "recipient").distinct().collect()
    return [(*pair, *one) for pair in pairs for one in known.owners(*pair).items()]


def alone(stated: DataFrame, found: list[Owner]) -> DataFrame:
    """Return the messages whose ids no other tenant can have chosen."""
    known = stated.sparkSession.createDataFrame(found, OWNER).select("sender", "recipient")
    rest = stated.where(CHOSEN).join(broadcast(known), ["sender", "recipient"], "left_anti")
    return stated.where(f"not ({CHOSEN})").unionByName(rest)


def apart(said: DataFrame, found: list[Owner], rules: Rules) -> DataFrame:
    """Return ``state`` of messages whose chosen ids two tenants may share, and of all files."""
    known = broadcast(said.sparkSession.createDataFrame(found, OWNER))
    files = said.where("sender is null").withColumn("owner", expr("cast(null as bigint)"))
    chosen = said.where(CHOSEN).join(known, ["sender", "recipient", "file"])
    return state(gather(files.unionByName(chosen), "owner"), rules)


def decided(stated: DataFrame, read: Iterable[Reading], rules: Rules) -> DataFrame:
    """Return the messages with final verdicts: what the files that were read cover is decided."""
    messages, known = stated.where("sender is not null"), CoverageIndex(read)
    unfinished = messages.where(f"verdict in {OPEN_VERDICTS}").select(
        "verdict", "sender", "recipient", "file"
    )
    rows = []
    for verdict, sender, recipient, file in unfinished.distinct().collect():
        one = known.coverage(verdict, sender, recipient, file)
        rows.append((verdict, sender, recipient, file, *one))
    coverage = stated.sparkSession.createDataFrame(rows, COVERAGE)
    same = "of_verdict = verdict and of_sender = sender and of_recipient = recipient"
    joined = messages.join(broadcast(coverage), expr(f"{same} and of_file = file"), "left")
    numbers = {name: expr(f"unix_millis({name})") for name in MOMENTS}
    verdict = expr(FINAL_VERDICT.format(cutoff=rules.cutoff, grace=rules.grace_ms))
    times = {name: expr(f"timestamp_millis({name})") for name in MOMENTS}
    judged = joined.withColumns(numbers).withColumn("verdict", verdict).withColumns(times)
    return judged.select(*FRAME, "file")  # the columns of what was settled before
