"""Settings as keyword arguments, for type checkers: the fields of ``Settings`` with their types."""

from __future__ import annotations

from typing import Literal, TypedDict

from onceward.message.parcel import Durability
from onceward.message.retry import RetryPolicy
from onceward.message.times import Span
from onceward.message.vocabulary import Aborted, Priority, QueueMode, QueueOverflow


class SettingsOptions(TypedDict, total=False):
    """The settings that ``Postbox`` takes as keywords; ``Settings`` says what each means."""

    durability: Durability
    accept_weaker: bool
    busy_timeout: Span
    network_filesystem: bool
    checkpoint_pages: int
    wal_limit: int
    max_body: int
    body_threshold: int
    max_pending: int
    max_inbox: int
    hold_unknown: bool
    ack: Literal["processed", "stored"]
    max_hops: int
    retry_first: Span
    retry_cap: Span
    retry_jitter: float
    retry: RetryPolicy | None
    max_retries: int
    count_unreachable_attempts: bool
    ack_timeout: Span
    deliver_timeout: Span
    carriers: int
    parcel_max_messages: int
    parcel_max_bytes: int
    breaker_failures: int
    breaker_open_for: Span
    breaker_successes: int
    lease: Span
    handler_timeout: Span
    handler_retries: int
    handler_retry: RetryPolicy | None
    workers: int | None
    claim_messages: int
    share_commit_for: Span
    max_runs: int
    abort_grace: Span
    queue_mode: QueueMode
    queue_debounce: Span
    queue_cap: float | None
    queue_overflow: QueueOverflow
    queue_aborted: Aborted
    retention: Span
    retention_slice: int
    maintenance_interval: Span
    poll_interval: Span
    stop_timeout: Span
    topics: tuple[str, ...] | None
    session_topics: dict[str, tuple[str, ...]]
    ephemeral_priorities: tuple[Priority, ...]
    transitions: bool
    http_ca: str
    http_certificate: str
    http_certificate_key: str
    http_plain_hosts: tuple[str, ...]
    audit: str
    search: bool
