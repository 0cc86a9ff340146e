"""Count per agent and hour: throughput, depth, retries, and dead letters by reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.window import Window

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "outbox": (
        "_agent", "id", "recipient", "state", "attempts", "created_at", "sent_at", "ended_at",
    ),
    "inbox": ("_agent", "id", "state", "attempts", "received_at", "ended_at", "waits_for",
              "waits_until_at"),
    "dead_letters": ("_agent", "id", "origin", "reason", "attempts", "created_at", "dead_at"),
    "peers": ("_agent", "name", "breaker", "failures", "due_at", "seen_at", "last_error"),
}  # fmt: skip
AGAIN: Final = "greatest(attempts - 1, 0)"
EVENTS: Final = ("sent", "out_ended", "received", "in_ended", "dead", "out_retries", "in_retries")


def metrics(tables: Mapping[str, DataFrame]) -> DataFrame:
    """
    Return one row per agent and hour in which anything happened.

    Columns: what was ``sent``, ``received``, what ended in the outbox and the
    inbox, what ``dead``; ``out_retries`` and ``in_retries``, at the hour in
    which the message ended or, while it has not, began; ``out_depth`` and
    ``in_depth``, what waited at the end of the hour. Rows that were pruned are
    not in it: archive first.
    """
    events = _events(tables)
    hourly = events.groupBy("agent", "hour").agg(
        *(expr(f"sum(if(event = '{name}', n, 0)) as {name}") for name in EVENTS)
    )
    upto = Window.partitionBy("agent").orderBy("hour")
    return hourly.withColumns(
        {
            "out_depth": expr("sum(sent - out_ended)").over(upto),
            "in_depth": expr("sum(received - in_ended)").over(upto),
        }
    )


def _events(tables: Mapping[str, DataFrame]) -> DataFrame:
    out, into, dead = tables["outbox"], tables["inbox"], tables["dead_letters"]
    sides = (
        _stacked(out, {"sent": "created_at", "out_ended": "ended_at"}, "out_retries", AGAIN),
        _stacked(into, {"received": "received_at", "in_ended": "ended_at"}, "in_retries", AGAIN),
        _stacked(
            dead.where("origin = 'outbox'"),
            {"sent": "created_at", "out_ended": "dead_at", "dead": "dead_at"},
            "out_retries",
            AGAIN,
        ),
        _stacked(
            dead.where("origin = 'inbox'"),
            {"received": "created_at", "in_ended": "dead_at", "dead": "dead_at"},
            "in_retries",
            AGAIN,
        ),
    )
    found = sides[0]
    for side in sides[1:]:
        found = found.unionByName(side)
    once = found.where(
        "at is not null and n > 0"
    ).distinct()  # a copy of a file says the same again
    return once.selectExpr("agent", "date_trunc('HOUR', at) as hour", "event", "n")


def _stacked(view: DataFrame, moments: Mapping[str, str], retries: str, count: str) -> DataFrame:
    last = f"coalesce({', '.join(reversed(list(moments.values())))})"
    rows = [f"'{event}', {at}, 1L" for event, at in moments.items()] + [
        f"'{retries}', {last}, cast({count} as bigint)"
    ]
    return view.selectExpr(
        "_agent as agent", "id", f"stack({len(rows)}, {', '.join(rows)}) as (event, at, n)"
    )


def reasons(dead_letters: DataFrame) -> DataFrame:
    """Return dead letters by agent, hour, side and reason: count and last time, no copy twice."""
    once = dead_letters.selectExpr(
        "_agent as agent", "id", "origin", "reason", "dead_at"
    ).distinct()
    grouped = once.groupBy("agent", expr("date_trunc('HOUR', dead_at) as hour"), "origin", "reason")
    return grouped.agg(expr("count(*) as messages"), expr("max(dead_at) as last_at"))


def breakers(peers: DataFrame) -> DataFrame:
    """Return the peers that are not reached now, since when, and until when their backoff lasts."""
    return peers.where("breaker <> 'closed' or failures > 0").selectExpr(
        "_agent as agent",
        "name as peer",
        "breaker",
        "failures",
        "seen_at as last_reached",
        "due_at as rests_until",
        "last_error",
    )


def waiting(inbox: DataFrame, now: int) -> DataFrame:
    """
    Return per agent what its messages wait for now: their number, and when the first goes on.

    ``overdue`` is how many should have gone on before *now*, in milliseconds; ``waits_for`` is
    that of the view ``onceward_inbox``.
    """
    once = inbox.where("waits_for is not null").selectExpr(
        "_agent as agent", "id", "waits_for", "waits_until_at"
    )
    late = f"count_if(waits_until_at < timestamp_millis({now}))"
    return (
        once.distinct()
        .groupBy("agent", "waits_for")
        .agg(
            expr("count(*) as messages"),
            expr(f"{late} as overdue"),
            expr("min(waits_until_at) as next_at"),
        )
    )
