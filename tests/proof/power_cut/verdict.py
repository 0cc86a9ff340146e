"""What the world outside can hold against two agents that came back from a cut."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.proof.power_cut.pair import Pair, refused, session_of
from tests.proof.power_cut.scene import Scene

from onceward.api.postbox import Postbox

PROMISED: Final = "SELECT n FROM promised"
EFFECTS: Final = "SELECT n, session FROM effects ORDER BY seq"
REMEMBERED: Final = "SELECT n FROM remembered"
NOTED: Final = "SELECT n FROM noted ORDER BY seq"
HALVES: Final = """
WITH own(id, state, left, here) AS (
    SELECT o.id, o.state,
           o.pushed OR o.seq IN (SELECT j.value
                                   FROM _onceward_peers AS p, json_each(p.in_flight_seqs) AS j
                                  WHERE p.name = 'near' AND p.in_flight_seqs IS NOT NULL),
           EXISTS (
               SELECT 1 FROM _onceward_inbox AS b WHERE b.sender = 'near' AND b.id = o.id
               UNION ALL SELECT 1 FROM _onceward_processed_messages AS p
                          WHERE p.sender = 'near' AND p.message_id = o.id
               UNION ALL SELECT 1 FROM _onceward_sender_streams AS s
                          WHERE s.sender = 'near' AND s.horizon_id >= o.id)
      FROM _onceward_outbox AS o
     WHERE o.recipient = 'near'
)
SELECT id, state FROM own WHERE CASE state WHEN 'pending' THEN here AND NOT left ELSE NOT here END
"""
ANSWERS: Final = "SELECT n FROM answers ORDER BY seq"
REFUSED: Final = "SELECT frame ->> '$.data.n' FROM _onceward_dead_letters WHERE origin = 'inbox'"
OPEN_ENDS: Final = """
SELECT (SELECT count(*) FROM _onceward_outbox WHERE state IN ('pending', 'sent'))
  + (SELECT count(*) FROM _onceward_inbox WHERE state = 'pending')
"""
ROUNDS: Final = 12
NEW: Final = 2


def judge(pair: Pair, scene: Scene) -> list[str]:
    """Look, go on, drain, and look again; whatever breaks a promise is returned in words."""
    wrong = _invariants(pair) + _forgotten(pair, scene)
    observe(pair, scene)
    for _ in range(NEW):
        pair.sign(pair.next_number())
        pair.remember(pair.next_number())
    wrong += _drain(pair)
    return (
        wrong
        + _invariants(pair)
        + _forgotten(pair, scene)
        + _unequal(pair, scene)
        + _misremembered(pair, scene)
    )


def observe(pair: Pair, scene: Scene) -> None:
    """Let the world read both files: what it saw there once must stay true."""
    for n in _numbers(pair.near, PROMISED):
        scene.note("sent", n)
    for n in _numbers(pair.far, EFFECTS):
        scene.note("done", n)


def _numbers(box: Postbox, sql: str) -> list[int]:
    return [int(row[0]) for row in box._db.read(sql)]


def _invariants(pair: Pair) -> list[str]:
    return [
        *_halves(pair),
        *_violations(pair),
    ]


def _halves(pair: Pair) -> list[str]:
    """Return messages of the near one to itself that are in one half of its file only."""
    rows = pair.near._db.read(HALVES) if pair.terms.engines else []
    return [f"HALF {message_id}: {state} in the outbox" for message_id, state in rows]


def _violations(pair: Pair) -> list[str]:
    return [
        f"INVARIANT {side} {v.invariant} {v.rule}: {v.offender}"
        for side, box in pair.boxes.items()
        for v in box.file.check()
    ]


def _forgotten(pair: Pair, scene: Scene) -> list[str]:
    """Return what was known outside and is not in the files any more."""
    promised, effects = set(_numbers(pair.near, PROMISED)), set(_numbers(pair.far, EFFECTS))
    answers, dead = set(_numbers(pair.near, ANSWERS)), set(_numbers(pair.far, REFUSED))
    signed = set(scene.known("sent")) & set(scene.known("signing"))
    return [
        *(
            f"LOST_ACK {n}: its block had ended without an exception"
            for n in sorted(signed - promised)
        ),
        *(
            f"LOST_EFFECT {n}: it was told to have been processed"
            for n in sorted(set(scene.known("done")) - effects)
        ),
        *(
            f"LOST_REFUSAL {n}: it was told to be a dead letter"
            for n in sorted(set(scene.known("refused")) - dead)
        ),
        *(
            f"LOST_ANSWER {n}: it was told to have been processed"
            for n in sorted(set(scene.known("answered")) - answers)
        ),
        *(
            f"LOST_CUSTODY {n}: its sender was told that it is done"
            for n in sorted(set(scene.known("told")) - effects - dead)
        ),
    ]


def _drain(pair: Pair) -> list[str]:
    for _ in range(ROUNDS):
        pair.turn()
        if not any(map(waits, pair.boxes.values())):
            return []
        pair.clock.advance(61)
    return ["STUCK: mail still waits after everybody had time enough"]


def waits(box: Postbox) -> bool:
    """Return whether a message of an agent has not come to its end."""
    return bool(box._db.read(OPEN_ENDS)[0][0])


def _unequal(pair: Pair, scene: Scene) -> list[str]:
    """
    Return promises without exactly one effect, stray effects, and effects out of order.

    A stray effect is one without a promise.
    """
    rows = [(int(n), str(session)) for n, session in pair.far._db.read(EFFECTS)]
    dead = _numbers(pair.far, REFUSED)
    times = Counter([n for n, _ in rows] + dead)
    promised, ended = set(_numbers(pair.near, PROMISED)), set(scene.known("sent"))
    owed, possible = promised | ended, promised | ended | set(scene.known("began"))
    answers = Counter(_numbers(pair.near, ANSWERS))
    return [
        *(f"LOST_IN_TRANSIT {n}: promised, and never done" for n in sorted(owed - set(times))),
        *(f"DUP_EFFECT {n}: done {count} times" for n, count in sorted(times.items()) if count > 1),
        *(f"PHANTOM {n}: done, and never promised" for n in sorted(set(times) - possible)),
        *(
            f"UNDONE {n}: taken back, and done"
            for n in sorted(set(times) & set(scene.known("undone")))
        ),
        *(
            f"MISTAKEN {n}: it was to be {'refused' if refused(n) else 'done'}"
            for n in sorted(times)
            if (n in dead) != refused(n)
        ),
        *(
            f"ANSWERS {n}: done once, answered {answers[n]} times"
            for n, _ in rows
            if answers[n] != 1
        ),
        *_disorder(rows),
    ]


def _misremembered(pair: Pair, scene: Scene) -> list[str]:
    """Return what the near one sent to itself and did not get once, in order."""
    noted, kept = _numbers(pair.near, NOTED), _numbers(pair.near, REMEMBERED)
    told, taken_back = set(scene.known("remembered")), set(scene.known("unremembered"))
    return [
        *(f"LOST_ACK {n}: its block had ended without an exception" for n in told - set(kept)),
        *(f"UNDONE {n}: taken back, and noted" for n in taken_back & set(noted)),
        *(["NOTES: not what was sent, once each and in order"] if noted != sorted(kept) else []),
    ]


def _disorder(rows: list[tuple[int, str]]) -> list[str]:
    last: dict[str, int] = {}
    found = [f"SESSION {n}: done in {session}" for n, session in rows if session != session_of(n)]
    for n, session in rows:
        if n <= last.get(session, 0):
            found.append(f"ORDER {n}: done after {last[session]}")
        last[session] = max(n, last.get(session, 0))
    return found
