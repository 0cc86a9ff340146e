"""A file in which every public view has a row."""

from pathlib import Path
from typing import Final

from onceward import Agent, Postbox

PLANTED: Final = """
INSERT INTO _onceward_steps (sender, message_id, name, ordinal, state, attempts, arguments, result,
    started_at, ended_at) VALUES ('bob', 'm', 'pay', 1, 'done', 2, '[]', '{"paid": 7}', 5, 6);
INSERT INTO _onceward_failed_attempts (sender, message_id, attempt, worker, error, trace, took,
    failed_at) VALUES ('bob', 'm', 3, 'w', 'Boom', 'trace', 0.25, 7);
INSERT INTO _onceward_output_batches (sender, message_id, name, first, last, kinds, chunks, bytes,
    attempt, stored_at) VALUES ('bob', 'm', 'text', 1, 2, 'cc', '["a", "b"]', 2, 1, 8);
INSERT INTO _onceward_acknowledgments (message_id, participant, stage, first_at, at)
    VALUES ('m', 'bob', 4, 9, 10);
INSERT INTO _onceward_sender_streams (sender, epoch, number, last_id, updated_at)
    VALUES ('bob', 'e', 4, 'm', 11);
UPDATE _onceward_session_queues SET cap = 3, paused_at = 12;
INSERT INTO _onceward_mailbox_readers (reader_id, mailbox, mode, name, critical, urgent, normal,
    low, background, read_at) VALUES (1, 'm', 'lease', 'g', 9, 9, 2, 9, 9, 13);
INSERT INTO _onceward_drops (id, peer, session, scope, name, policy, line, dropped_at)
    VALUES ('m', 'bob', 's', 'session', 's', 'drop_old', 'l', 14);
INSERT INTO _onceward_runs (id, session, mode, lane_id, token, owner, bound, event_ids, began_with,
    started_at) VALUES ('r', 'chat', 'queue', 1, 1, 'o', '[1]', '["m"]', 1, 15);
UPDATE _onceward_inbox SET ephemeral = 1;
INSERT INTO _onceward_differing_messages (box, peer, id, noticed_at)
    VALUES ('inbox', 'bob', 'm', 16);
"""
"""Rows of tables that a short run does not fill; the others are filled by calls."""


def plant(path: Path) -> Path:
    """Create the file of *carol*; return its path."""
    agent = Agent("carol")
    agent.runs("chat", mode="collect", debounce=600)(lambda _run: None)
    agent.on("kept", keep_result=True)(lambda _body: {"kept": True})
    with Postbox(path, agent=agent, start=False, hold_unknown=True, transitions=True) as carol:
        carol.session("chat").send("carol", {"n": 1})
        carol.send("dave", {"n": 2})
        carol.send("carol", {"n": 4}, type="kept")
        carol.send("carol", {"n": 6}, type="kept", ttl=0)
        carol.run_until_idle()
        carol.schedules.add("hourly", every="1h", to="carol", body={"n": 3})
        carol.limits.set("outbox", messages=100)
        carol.limits.set("handler", "kept", rate="9/s")
        with carol.groups.begin(then="carol") as group:
            group.send("dave", {"n": 5})
        carol.pools.add("thumbs", "dave")
        carol._db.write(lambda tx: tx.rows(PLANTED))
    return path
