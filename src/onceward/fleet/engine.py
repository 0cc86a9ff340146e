"""Judge the messages of a workspace in SQLite: evidence in, one row with a verdict for each out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import apsw

from onceward.fleet import plain, pools
from onceward.fleet.coverage import CoverageIndex, OpenVerdict, Reading
from onceward.fleet.facts import FACTS, KNOWN
from onceward.fleet.verdict_sql import (
    ASKING_FILE,
    FINAL_VERDICT,
    FRAME,
    KEY,
    MINTED,
    OPEN_VERDICTS,
    PLAIN_VERDICT,
    PROVISIONAL_VERDICT,
    RECIPIENT_SAYS,
    SENDER_SAYS,
)
from onceward.fleet.verdicts import Rules

MESSAGES: Final = f"CREATE TABLE messages ({', '.join(FRAME)}, file)"
GROUPED: Final = (
    f"SELECT {', '.join(KEY)},"
    f" {', '.join(f'{fact.grouped} AS {name}' for name, fact in FACTS.items())}"
    f" FROM temp.evidence {{rows}} HAVING {KNOWN}"
)
BY_KEY: Final = f"GROUP BY {', '.join(KEY)}"
"""By pair first: evidence comes file by file, and so do messages leave, for ``figures``."""
STATE: Final = f"""
INSERT INTO messages
SELECT sender, recipient, id, verdict, {SENDER_SAYS}, {RECIPIENT_SAYS}, waits_for, created_at,
       sent_at, ended_at, received_at, marked_at, effect_at, waits_until_at, lane,
       out_seq, in_seq, mark_seq, {ASKING_FILE}
  FROM (SELECT *, {{verdict}} AS verdict FROM ({{facts}}))
"""
CHOSEN: Final = f"SELECT DISTINCT sender, recipient FROM messages WHERE NOT {MINTED}"
OWNERS: Final = """
CREATE TEMP TABLE owner (sender, recipient, file, owner, PRIMARY KEY (sender, recipient, file))
"""
OWNER: Final = "INSERT INTO temp.owner VALUES (?, ?, ?, ?)"
SHARED: Final = f"""
 WHERE NOT {MINTED} AND (sender, recipient) IN (SELECT sender, recipient FROM temp.owner)"""
BY_OWNER: Final = f"""{SHARED}
 GROUP BY sender, recipient, id,
          (SELECT o.owner FROM temp.owner AS o WHERE o.sender = evidence.sender
              AND o.recipient = evidence.recipient AND o.file = evidence.file)
"""
BY_VERDICT: Final = f"""
CREATE INDEX by_verdict ON messages (verdict, sender, recipient, file)
 WHERE verdict IN {OPEN_VERDICTS}
"""
"""Few messages have an open verdict: they are found without reading all the others twice."""
OPEN: Final = f"""
SELECT DISTINCT verdict, sender, recipient, file FROM messages WHERE verdict IN {OPEN_VERDICTS}
"""
COVERAGE: Final = """
CREATE TEMP TABLE coverage (
    of_verdict, of_sender, of_recipient, of_file, known, horizon_id, pruned_id, pruned_at, upto_at,
    horizon_at,
    PRIMARY KEY (of_verdict, of_sender, of_recipient, of_file)
) WITHOUT ROWID
"""
COVER: Final = "INSERT INTO temp.coverage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
COMPLETE: Final = f"""
UPDATE messages SET verdict = {FINAL_VERDICT}
  FROM temp.coverage AS c
 WHERE verdict IN {OPEN_VERDICTS} AND c.of_verdict = verdict AND c.of_sender = sender
   AND c.of_recipient = recipient AND c.of_file = file
"""


def give_verdicts(con: apsw.Connection, readings: Sequence[Reading], rules: Rules) -> None:
    """Fill the table ``messages`` of a workspace: every message of its evidence, with a verdict."""
    con.execute(MESSAGES)
    con.execute(BY_VERDICT)
    _state(con, rules)
    known = CoverageIndex(readings)
    if known.twins:
        _split(con, known, rules)
    con.execute(COVERAGE)
    for verdict, sender, recipient, file in con.execute(OPEN).fetchall():
        one = known.coverage(
            cast("OpenVerdict", verdict), str(sender), str(recipient), cast("int", file)
        )
        con.execute(COVER, (verdict, sender, recipient, file, *one))
    con.execute(COMPLETE.format(cutoff=rules.cutoff, grace=rules.grace_ms))
    pools.judge(con, readings)


def _state(con: apsw.Connection, rules: Rules) -> None:
    unusual = plain.unusual(con)
    if unusual is not None:
        _add(con, rules, plain.sent(apart=unusual > 0), PLAIN_VERDICT)
        if plain.any_unsent(con):
            _add(con, rules, plain.received(apart=unusual > 0), PLAIN_VERDICT)
    if unusual != 0:
        _add(con, rules, _grouped(BY_KEY if unusual is None else f"WHERE {plain.UNUSUAL} {BY_KEY}"))


def _grouped(rows: str) -> str:
    return GROUPED.format(rows=rows)


def _add(
    con: apsw.Connection, rules: Rules, facts: str, verdict: str = PROVISIONAL_VERDICT
) -> None:
    found = verdict.format(cutoff=rules.cutoff, late=rules.late_ms)
    con.execute(STATE.format(verdict=found, facts=facts))


def _split(con: apsw.Connection, known: CoverageIndex, rules: Rules) -> None:
    """Separate messages of two tenants with the same chosen id and the same names."""
    con.execute(OWNERS)
    for sender, recipient in con.execute(CHOSEN).fetchall():
        owners = known.owners(str(sender), str(recipient))
        con.executemany(OWNER, ((sender, recipient, *one) for one in owners.items()))
    con.execute(f"DELETE FROM messages {SHARED}")
    _add(con, rules, _grouped(BY_OWNER))
