-- Triggers that record transitions: created when recording is switched on, dropped when it is switched off.

CREATE TRIGGER _onceward_transitions_outbox_insert AFTER INSERT ON _onceward_outbox
BEGIN
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state)
    VALUES (CASE WHEN NEW.replays = 0 THEN NEW.created_at
                 ELSE CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) END,
            'outbox', NEW.id, NEW.recipient, NULL, NEW.state);
END;

CREATE TRIGGER _onceward_transitions_outbox_update AFTER UPDATE OF state, due_at ON _onceward_outbox
WHEN OLD.state <> NEW.state OR NEW.attempts > OLD.attempts
BEGIN
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state, reason)
    VALUES (coalesce(NEW.ended_at, CASE NEW.state WHEN 'sent' THEN NEW.sent_at END,
                     CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            'outbox', NEW.id, NEW.recipient, OLD.state, NEW.state, NEW.reason);
END;

CREATE TRIGGER _onceward_transitions_inbox_insert AFTER INSERT ON _onceward_inbox
BEGIN
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state)
    VALUES (CASE WHEN NEW.replays = 0 THEN NEW.received_at
                 ELSE CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) END,
            'inbox', NEW.id, NEW.sender, NULL, CASE WHEN NEW.attempts > 0 THEN 'pending' ELSE NEW.state END);
    -- A message that was handled as it was stored has both transitions.
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state)
    SELECT NEW.ended_at, 'inbox', NEW.id, NEW.sender, 'pending', NEW.state
     WHERE NEW.attempts > 0 AND NEW.state <> 'pending';
END;

CREATE TRIGGER _onceward_transitions_inbox_update AFTER UPDATE OF state, attempts ON _onceward_inbox
WHEN OLD.state <> NEW.state OR NEW.attempts > OLD.attempts
BEGIN
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state, reason)
    VALUES (coalesce(NEW.ended_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            'inbox', NEW.id, NEW.sender, OLD.state, NEW.state, NEW.reason);
END;

CREATE TRIGGER _onceward_transitions_dead AFTER INSERT ON _onceward_dead_letters
BEGIN
    INSERT INTO _onceward_transitions (at, box, id, peer, from_state, to_state, reason)
    VALUES (NEW.dead_at, NEW.origin, NEW.id, NEW.peer, NULL, 'dead', NEW.reason);
END;
