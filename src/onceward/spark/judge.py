"""What is to be said of one message: one verdict from what its two sides say, by rules that are written down."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, col, expr

from onceward.spark.facts import IN_STATES, OUT_STATES, OUTCOMES, spelt
from onceward.spark.verdicts import Rules

RECIPIENT_KNOWS: Final = "(in_state > 0 or mark > 0 or in_dead > 0)"
SENDER_KNOWS: Final = "(out_state > 0 or out_dead > 0)"
TWO_EFFECTS: Final = "(effect_at < effect_last_at or effect_seq < effect_last_seq)"
ENDED_THERE: Final = "(in_state > 2 or mark > 0 or in_dead > 0)"
# One line per verdict, the first that holds counts. {cutoff} and {late} are filled in from the rules.
JUDGEMENT: Final = f"""
case
when {TWO_EFFECTS}                                          then 'double_processed'
when received_at < received_last_at                         then 'duplicated'
when not {SENDER_KNOWS} and not sender_read                 then 'unwitnessed'
when not {SENDER_KNOWS} and seen_at > {{cutoff}}            then 'in_flight'
when not {SENDER_KNOWS} and seen_at < sender_reach and {ENDED_THERE} then 'forgotten'
when not {SENDER_KNOWS} and seen_at < sender_reach          then 'unprocessed'
when not {SENDER_KNOWS}                                     then 'orphan'
when (in_state = 5 or mark = 4) and out_dead > 0            then 'late'
when (in_state = 5 or mark = 4) and took > {{late}}         then 'late'
when in_state = 5 or mark = 4                               then 'delivered_once'
when mark = 3 or in_dead > 0                                then 'dead_lettered'
when in_state = 4 or mark = 2                               then 'dropped'
when in_state = 3 or mark = 1                               then 'expired'
when in_state > 0 and received_at > {{cutoff}}              then 'in_flight'
when in_state > 0                                           then 'unprocessed'
when out_state = 6 and out_ended_at > {{cutoff}}            then 'in_flight'
when out_state = 6 and not recipient_read                   then 'unwitnessed'
when out_state = 6 and out_ended_at < recipient_reach       then 'forgotten'
when out_state = 6                                          then 'lost'
when out_state = 5                                          then 'dead_lettered'
when out_state = 4                                          then 'cancelled'
when out_dead = 2                                           then 'expired'
when out_dead = 1                                           then 'dead_lettered'
else 'in_flight' end
"""
SENDER_SAYS: Final = f"if(out_state = 0 and out_dead > 0, 'dead letter', {spelt('out_state', OUT_STATES, 'nothing')})"
RECIPIENT_SAYS: Final = (
    f"case when in_dead > 0 then 'dead letter' when in_state > 0 then {spelt('in_state', IN_STATES, 'nothing')}"
    f" when mark > 0 then concat({spelt('mark', OUTCOMES, 'nothing')}, ', marked') else 'nothing' end"
)


def judge(facts: DataFrame, agents: DataFrame, rules: Rules) -> DataFrame:
    """
    Return the verdict of each message; *facts*, as ``gather`` returns them, are read twice, so store them first.

    Whoever of *agents* (``_db``, ``_agent``) could not be read when the facts
    were gathered does not count as read: nobody lost what nobody looked for.
    """
    unread = broadcast(facts.where("sender is null").selectExpr("id as _db"))
    there = agents.join(unread, "_db", "left_anti").selectExpr("_agent as agent").distinct()
    known = there.join(_reach(facts, rules), "agent", "left")
    sender = known.selectExpr("agent as sender", "sent_reach as sender_reach", "true as sender_read")
    recipient = known.selectExpr("agent as recipient", "mark_reach as recipient_reach", "true as recipient_read")
    seen = facts.where("sender is not null").withColumns(
        {"seen_at": expr("coalesce(marked_at, received_at)"), "took": expr("effect_at - created_at")}
    )
    full = seen.join(broadcast(sender), "sender", "left").join(broadcast(recipient), "recipient", "left")
    full = full.withColumns({side: expr(f"coalesce({side}, false)") for side in ("sender_read", "recipient_read")})
    return full.select(
        "sender", "recipient", "id",
        expr(JUDGEMENT.format(cutoff=rules.cutoff, late=rules.late_ms)).alias("verdict"),
        expr(SENDER_SAYS).alias("sender_says"), expr(RECIPIENT_SAYS).alias("recipient_says"),
        *(expr(f"timestamp_millis({name})").alias(name) for name in ("created_at", "sent_at", "received_at")),
        expr("timestamp_millis(effect_at)").alias("processed_at"),
        *map(col, ("lane", "out_seq", "in_seq", "mark_seq")),
    )  # fmt: skip


def _reach(facts: DataFrame, rules: Rules) -> DataFrame:
    """
    Return how far back each agent's records go, NULL where nothing of them was ever pruned.

    Sequences have no holes, but where rows were pruned. Of what is pruned the
    oldest goes first, so whatever ended after the oldest row that is left must
    be there.
    """
    now = rules.now
    sent = facts.where("out_state > 0 or out_dead > 0").groupBy(col("sender").alias("agent")).agg(
        expr(f"if(count(*) < max(out_seq), coalesce(min(if(out_state = 6, out_ended_at, null)), {now}), null)").alias("sent_reach")
    )  # fmt: skip
    marked = facts.where("mark > 0").groupBy(col("recipient").alias("agent")).agg(
        expr("if(count(*) < max(mark_seq), min(marked_at), null)").alias("mark_reach")
    )  # fmt: skip
    return sent.join(marked, "agent", "full")
