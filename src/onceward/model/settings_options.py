"""Settings as keyword arguments, for type checkers: the fields of ``Settings`` with their types."""

from __future__ import annotations

from typing import Literal, TypedDict

from onceward.model.parcel import Durability
from onceward.model.vocabulary import Aborted, Priority, QueueMode, QueueOverflow


class SettingsOptions(TypedDict, total=False):
    """The settings that ``Postbox`` takes as keywords; ``Settings`` says what each means."""

    durability: Durability
    accept_weaker: bool
    busy_timeout: float
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
    retry_first: float
    retry_cap: float
    retry_jitter: float
    max_retries: int
    count_unreachable_attempts: bool
    ack_timeout: float
    deliver_timeout: float
    carriers: int
    parcel_max_messages: int
    parcel_max_bytes: int
    breaker_failures: int
    breaker_open_for: float
    breaker_successes: int
    lease: float
    handler_timeout: float
    handler_retries: int
    workers: int | None
    claim_messages: int
    share_commit_for: float
    max_runs: int
    abort_grace: float
    queue_mode: QueueMode
    queue_debounce: float
    queue_cap: float | None
    queue_overflow: QueueOverflow
    queue_aborted: Aborted
    retention: float
    retention_slice: int
    maintenance_interval: float
    poll_interval: float
    stop_timeout: float
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
