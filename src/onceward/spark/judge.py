"""Give each message one verdict from what its two sides say, by written rules."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, expr

from onceward.fleet.opening import FILE_STATES
from onceward.fleet.states import IN_STATES, OUT_STATES, OUTCOMES, spelt
from onceward.fleet.verdicts import Rules

SENDER_KNOWS: Final = "(out_state > 0 or out_dead > 0)"
TWO_EFFECTS: Final = "(effect_at < effect_last_at or effect_seq < effect_last_seq)"
QUESTIONS: Final = ("unsent", "unseen")
"""Verdicts that a message's own records leave open: no sender, or no recipient, was read."""
# One line per verdict, the first that holds counts; {cutoff} and {late} come from the rules.
STATEMENT: Final = f"""
case
when sender is null then {spelt("file", FILE_STATES, "corrupt")}
when {TWO_EFFECTS}                                          then 'double_processed'
when received_at < received_last_at                         then 'duplicated'
when not {SENDER_KNOWS}                                     then 'unsent'
when (in_state = 5 or mark = 4) and out_dead > 0            then 'late'
when (in_state = 5 or mark = 4) and effect_at - created_at > {{late}} then 'late'
when in_state = 5 or mark = 4                               then 'delivered_once'
when mark = 3 or in_dead > 0                                then 'dead_lettered'
when in_state = 4 or mark = 2                               then 'dropped'
when in_state = 3 or mark = 1                               then 'expired'
when in_state > 0 and received_at > {{cutoff}}              then 'in_flight'
when in_state > 0                                           then 'unprocessed'
when out_state = 7                                          then 'unseen'
when out_state = 6                                          then 'dead_lettered'
when out_state = 5                                          then 'dropped'
when out_state = 4                                          then 'cancelled'
when out_dead = 2                                           then 'expired'
when out_dead = 1                                           then 'dead_lettered'
else 'in_flight' end
"""
SEEN_AT: Final = "unix_millis(coalesce(marked_at, received_at))"
ENDED_AT: Final = "unix_millis(ended_at)"
ENDED_THERE: Final = "(mark_seq is not null or recipient_says not in ('pending', 'processing'))"
ASKED: Final = "if(verdict = 'unsent', sender, recipient)"
"""The agent whose file answers the question."""
ANSWER: Final = f"""
case verdict
when 'unsent' then case
    when agent is null                                      then 'unwitnessed'
    when {SEEN_AT} > {{cutoff}}                             then 'in_flight'
    when {SEEN_AT} < sent_reach and {ENDED_THERE}           then 'forgotten'
    when {SEEN_AT} < sent_reach                             then 'unprocessed'
    else 'orphan' end
when 'unseen' then case
    when {ENDED_AT} > {{cutoff}}                            then 'in_flight'
    when agent is null                                      then 'unwitnessed'
    when {ENDED_AT} < mark_reach                            then 'forgotten'
    else 'lost' end
else verdict end
"""
_SPELT_OUT: Final = spelt("out_state", OUT_STATES, "nothing")
_SPELT_IN: Final = spelt("in_state", IN_STATES, "nothing")
SENDER_SAYS: Final = f"if(out_state = 0 and out_dead > 0, 'dead letter', {_SPELT_OUT})"
RECIPIENT_SAYS: Final = (
    f"case when in_dead > 0 then 'dead letter' when in_state > 0 then {_SPELT_IN}"
    f" when mark > 0 then concat({spelt('mark', OUTCOMES, 'nothing')}, ', marked')"
    " else 'nothing' end"
)
TEXTS: Final = ("sender", "recipient", "id", "verdict", "sender_says", "recipient_says")
MOMENTS: Final = ("created_at", "sent_at", "ended_at", "received_at", "marked_at", "processed_at")
NUMBERS: Final = ("lane", "out_seq", "in_seq", "mark_seq")
FRAME: Final = (*TEXTS, *MOMENTS, *NUMBERS)
"""The columns of a judged message."""
DDL: Final = ", ".join(
    f"{name} {kind}"
    for names, kind in ((TEXTS, "string"), (MOMENTS, "timestamp"), (NUMBERS, "bigint"))
    for name in names
)
REACH: Final = {
    "sent": "count_if(sender_says <> 'nothing')",
    "sent_last": "max(out_seq)",
    "acked_from": "min(if(sender_says = 'acked', ended_at, null))",
    "marks": "count(mark_seq)",
    "mark_last": "max(mark_seq)",
    "marked_from": "min(marked_at)",
}


def state(facts: DataFrame, rules: Rules) -> DataFrame:
    """Return each message of ``gather`` with its verdict, or a question for the other files."""
    verdict = expr(STATEMENT.format(cutoff=rules.cutoff, late=rules.late_ms)).alias("verdict")
    said = (expr(SENDER_SAYS).alias("sender_says"), expr(RECIPIENT_SAYS).alias("recipient_says"))
    moments = ((name, "effect_at" if name == "processed_at" else name) for name in MOMENTS)
    return facts.select(
        "sender",
        "recipient",
        "id",
        verdict,
        *said,
        *(expr(f"timestamp_millis({at}) as {name}") for name, at in moments),
        *NUMBERS,
    )


def witnesses(stated: DataFrame, rules: Rules) -> DataFrame:
    """
    Return the agents whose files were read, and since when their records are complete.

    A moment is NULL where nothing was ever pruned. An agent whose file could not be read when the
    facts were gathered does not count as read: its messages are not called lost. Sequences have no
    holes but where rows were pruned. Pruning starts with the oldest row, so every row that ended
    after the oldest remaining one must be there.
    """
    files = stated.where("sender is null")
    unread = broadcast(files.where("verdict <> 'read'").select("id"))
    there = (
        files.where("verdict = 'read'")
        .join(unread, "id", "left_anti")
        .selectExpr("recipient as agent")
        .distinct()
    )
    pairs = (
        stated.where("sender is not null")
        .groupBy("sender", "recipient")
        .agg(*(expr(f"{sql} as {name}") for name, sql in REACH.items()))
    )
    sent = pairs.groupBy(expr("sender as agent")).agg(
        expr(
            f"if(sum(sent) < max(sent_last), coalesce(unix_millis(min(acked_from)), {rules.now}),"
            " null) as sent_reach"
        )
    )
    marked = pairs.groupBy(expr("recipient as agent")).agg(
        expr("if(sum(marks) < max(mark_last), unix_millis(min(marked_from)), null) as mark_reach")
    )
    return there.join(sent, "agent", "left").join(marked, "agent", "left")


def answer(stated: DataFrame, witnesses: DataFrame, rules: Rules) -> DataFrame:
    """Return the messages with all questions answered by the files that were read."""
    asked = stated.where("sender is not null").join(
        broadcast(witnesses), expr(f"agent = {ASKED}"), "left"
    )
    return asked.withColumn("verdict", expr(ANSWER.format(cutoff=rules.cutoff))).select(*FRAME)
