"""Define what a postbox is opened with: every setting with its unit, default and bounds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, TypedDict, Unpack

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
)
from pydantic_core import core_schema

from onceward.errors import InvalidArgument
from onceward.message.body import describe_errors
from onceward.message.clock import Clock
from onceward.message.ids import IdSource
from onceward.message.names import PREFIX, no_option
from onceward.message.parcel import Durability
from onceward.message.retry import RetryPolicy, exponential
from onceward.message.times import WHOLE, Span, seconds
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
    max_steps: int
    max_step_bytes: int
    max_stream_chunks: int
    max_stream_bytes: int
    stream_batch_for: Span
    stream_batch_bytes: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """
    Parts of a postbox that a test controls; None is as in production.

    ``Postbox(path, testing=Controls(clock=ManualClock()))``; a ``Harness`` gives its own.
    """

    clock: Clock | None = None
    """Time of leases, retries, delays and ids."""
    ids: IdSource | None = None
    """Source of message ids; by default they follow the clock."""
    rng: random.Random | None = None
    """Source of the jitter."""
    vfs: str | None = None
    """Name of the VFS that SQLite opens the file with."""


def _spelled(value: Any) -> Any:
    """Read a timedelta, or a span as text, such as 7d; leave all else to the field."""
    text = isinstance(value, str) and WHOLE.fullmatch(value)
    return seconds("it", value) if text or isinstance(value, timedelta) else value


Spelled = BeforeValidator(_spelled)
Seconds = Annotated[float, Spelled, Field(ge=0, le=1e9, allow_inf_nan=False)]
Positive = Annotated[float, Spelled, Field(gt=0, le=1e9, allow_inf_nan=False)]
DAY: Final = 86_400.0


def _listed(value: Any) -> Any:
    """Read a list from an environment variable, where commas part it."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


def _mapped(value: Any) -> Any:
    """Read a mapping from an environment variable, where it is JSON."""
    return json.loads(value) if isinstance(value, str) else value


Policy = Annotated[
    RetryPolicy | None,
    GetPydanticSchema(
        lambda _source, _handler: core_schema.nullable_schema(
            core_schema.is_instance_schema(RetryPolicy)
        )
    ),
]


class Settings(BaseModel):
    """
    How one postbox behaves.

    Precedence: keyword at Postbox, then a ``Settings`` object, then
    ``ONCEWARD_<NAME>`` in the environment, then ``[tool.onceward]`` in the
    nearest pyproject.toml, then the default here. Spans are seconds, sizes
    bytes of UTF-8.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    durability: Durability = "safe"
    """``safe``: a commit survives power loss; ``fast``: it survives SIGKILL only."""
    accept_weaker: bool = False
    """Let a receipt from a peer of weaker durability settle a message."""
    busy_timeout: Seconds = 30.0
    """Deadline for one unit of work against other writers, reads included."""
    network_filesystem: bool = False
    """Open the file even on a file system whose locks are not trusted."""
    checkpoint_pages: Annotated[int, Field(ge=1)] = 1000
    """Automatic checkpoint after this many pages in the WAL."""
    wal_limit: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    """WAL size from which maintenance forces a checkpoint."""

    max_body: Annotated[int, Field(ge=1)] = 1 << 20
    """Largest body, refused on send and on receipt."""
    body_threshold: Annotated[int, Field(ge=0)] = 3584
    """Bodies of more bytes than this are stored beside their message, not in it."""
    max_pending: Annotated[int, Field(ge=1)] = 100_000
    """Messages that may wait in the outbox of this file."""
    max_inbox: Annotated[int, Field(ge=1)] = 1_000_000
    """Unhandled messages that the inbox takes before it answers ``busy``."""
    hold_unknown: bool = False
    """Keep messages for recipients that are not known yet, instead of refusing them."""
    ack: Literal["processed", "stored"] = "processed"
    """Event that settles a sent message: the handler's commit, or the peer's durable receipt."""

    max_hops: Annotated[int, Field(ge=1, lt=2**31)] = 64
    """Most messages that may have led to one that the inbox takes: loops of replies end there."""

    retry_first: Seconds = 1.0
    """Pause after the first failure; it doubles with each further one."""
    retry_cap: Seconds = 60.0
    """Longest pause between two attempts, jitter included; an open breaker has its own."""
    retry_jitter: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the delay by which it is varied at random, up or down."""
    retry: Policy = None
    """Policy of delivery that goes before ``retry_*`` and ``max_retries``; not text."""
    max_retries: Annotated[int, Field(ge=0)] = 10
    """
    Re-attempts before a dead letter: attempts are one more.

    A message that its peer has stored is asked about without end.
    """
    count_unreachable_attempts: bool = False
    """Count attempts that reached no peer against ``max_retries``."""
    ack_timeout: Seconds = 30.0
    """
    Time after which the peer is asked about a stored but unhandled message.

    The pause doubles each time, up to sixteen times as long. Each is prolonged by up to
    a quarter, so that a peer is asked about several messages in one push.
    """
    deliver_timeout: Seconds = 30.0
    """Longest push of one parcel; one that hangs longer is given up, and its peer backs off."""
    carriers: Annotated[int, Field(ge=1, le=1024)] = 64
    """Most peers that are pushed to at once; at most 8 of them are peers that failed last."""
    parcel_max_messages: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Most messages of one push; over a network up to 10,000, while its way is slow."""
    parcel_max_bytes: Annotated[int, Field(ge=1 << 10)] = 4 << 20
    """Largest push; a single message may be larger."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """Failures in a row that open a peer's breaker."""
    breaker_open_for: Seconds = 30.0
    """How long an open breaker leaves its peer alone before it is tried again."""
    breaker_successes: Annotated[int, Field(ge=1)] = 2
    """Pushes that must succeed before a half-open breaker closes."""

    lease: Positive = 30.0
    """How long a claim lasts without a heartbeat."""
    handler_timeout: Positive = 3600.0
    """Longest run of one handler; its lease is not prolonged beyond."""
    handler_retries: Annotated[int, Field(ge=0)] = 10
    """Re-attempts of a failing handler before the message becomes a dead letter."""
    handler_retry: Policy = None
    """Policy of handlers that goes before ``retry_*`` and ``handler_retries``; not text."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """
    Handlers that run at the same time, each on its worker thread.

    None is 1, or 8 where a handler is ``async def``, or the largest ``concurrency`` of a
    handler; functions that say no ``concurrency`` run one at a time then.
    """
    claim_messages: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Most messages of one claim."""
    share_commit_for: Seconds = 0.02
    """Longest span in which quick handlers share one commit; 0 gives each its own."""

    max_steps: Annotated[int, Field(ge=1)] = 1000
    """Steps that the handler of one message may store."""
    max_step_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """Largest results of all steps of one message together."""
    max_stream_chunks: Annotated[int, Field(ge=1)] = 100_000
    """Chunks that the handler of one message may put out, in all its streams."""
    max_stream_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """Largest output of one message, in all its streams."""
    stream_batch_for: Seconds = 0.1
    """Longest span for which a chunk of output waits for others, to be committed with them."""
    stream_batch_bytes: Annotated[int, Field(ge=1)] = 16 << 10
    """Bytes of output that are committed at once."""
    max_runs: Annotated[int, Field(ge=1, le=1000)] = 16
    """Runs of different sessions that this process has open at the same time."""
    abort_grace: Seconds = 5.0
    """
    How long a session waits for an aborted call to return before its next run begins.

    A coroutine is cancelled once more then, and gets the same time again.
    """
    queue_mode: QueueMode = "followup"
    """Mode of a busy session with runs, where neither session nor handler sets one."""
    queue_debounce: Annotated[float, Spelled, Field(le=1e9, allow_inf_nan=False)] = 1.0
    """Quiet that a collect waits for; negative counts as 0."""
    queue_cap: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """Messages that may wait in one session's queue, any number for None; fractions are cut off."""
    queue_overflow: QueueOverflow = "reject"
    """Policy of a full queue: ``reject`` the new, ``drop_old``, or ``summarize`` what it drops."""
    queue_aborted: Aborted = "return"
    """End of an aborted run's messages when partial output was stored."""

    retention: Seconds = 7 * DAY
    """
    How long acked and processed rows, dedup records and transitions are kept.

    At least as long as a message is tried again.
    """
    retention_slice: Annotated[int, Field(ge=1)] = 500
    """Rows deleted in one transaction, between which writers get their turn."""
    maintenance_interval: Positive = 60.0
    """Time between two rounds of pruning and checkpoints."""
    poll_interval: Seconds = 0.1
    """
    How often ``PRAGMA data_version`` is read, should a notification get lost; 0 is never.

    A process with more than ten files reads it less often in each, up to once a second.
    """
    stop_timeout: Seconds = 5.0
    """Longest wait for running handlers and pushes when the postbox stops."""
    topics: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = None
    """The topics that may be sent and polled; any other is a TopicError. None allows all."""
    session_topics: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_mapped)] = {}
    """Topics of single sessions, which override ``topics``; in the environment as JSON."""
    ephemeral_priorities: Annotated[tuple[Priority, ...], BeforeValidator(_listed)] = ()
    """Priorities whose messages to mailboxes are ephemeral where the send does not say."""
    transitions: bool = False
    """Write every transition of a message into the table of transitions."""
    http_ca: str = ""
    """File of the authorities that sign the certificates of https peers; empty: the system's."""
    http_certificate: str = ""
    """File of the certificate that https peers are shown (mTLS); empty is none."""
    http_certificate_key: str = ""
    """File of that certificate's key; empty: it is in the file of the certificate."""
    http_plain_hosts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Other machines that may be reached without TLS."""
    audit: str = ""
    """File that gets one JSON line, without body, per send, poll and expire; empty is none."""
    search: bool = False
    """Keep an index of the words of bodies, for ``search``."""

    @classmethod
    @lru_cache(maxsize=16)
    def _inherit(cls, *, busy_timeout: float) -> Self:
        """Return defaults that override nothing, for opening a file whose owner's settings hold."""
        return cls.model_construct(_fields_set=set(), busy_timeout=busy_timeout)

    @classmethod
    def merge(
        cls,
        given: Settings | None,
        overrides: Mapping[str, Any],
        *,
        env: Mapping[str, str] = MappingProxyType({}),
        project: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """
        Merge overrides, settings, environment, project and defaults, in that precedence.

        Raises:
            InvalidArgument: a value is out of its bounds or a name is unknown.

        """
        values = dict(project) | {
            field: env[PREFIX + field.upper()]
            for field in cls.model_fields
            if PREFIX + field.upper() in env
        }
        if given is not None:
            values |= {name: getattr(given, name) for name in given.model_fields_set}
        values |= overrides
        if unknown := values.keys() - cls.model_fields:
            raise InvalidArgument(no_option("settings", unknown, cls.model_fields))
        try:
            found = cls.model_validate(values)
        except ValidationError as error:
            msg = f"settings: {describe_errors(error)}"
            raise InvalidArgument(msg) from error
        found._check_retention()
        return found

    @property
    def delivery_policy(self) -> RetryPolicy:
        """The policy by which deliveries are tried again."""
        return self.retry or self._doubling(self.max_retries)

    @property
    def handling_policy(self) -> RetryPolicy:
        """The policy by which handlers without one of their own are tried again."""
        return self.handler_retry or self._doubling(self.handler_retries)

    def _doubling(self, retries: int) -> RetryPolicy:
        return exponential(self.retry_first, retries, cap=self.retry_cap, jitter=self.retry_jitter)

    @property
    def retry_horizon(self) -> float:
        """Seconds in which a message may be pushed again: the longest pauses of its re-attempts."""
        longest, doubled = 1 + self.retry_jitter, min(self.max_retries, 64)
        pauses = (self.retry_first * longest * 2.0**n for n in range(doubled))
        capped = sum(min(pause, self.retry_cap) for pause in pauses)
        return capped + (self.max_retries - doubled) * self.retry_cap

    def _check_retention(self) -> None:
        """Raise InvalidArgument where marks would be forgotten before a message's last retry."""
        if self.retention < self.retry_horizon:
            msg = (
                f"settings: retention {self.retention:g} s is shorter than the"
                f" {self.retry_horizon:g} s in which a message is tried again (max_retries"
                f" {self.max_retries}): a late retry would be refused as stale; retain longer,"
                " or retry less"
            )
            raise InvalidArgument(msg)

    @classmethod
    def five_minutes(cls, **overrides: Unpack[SettingsOptions]) -> Self:
        """
        Return the preset that gives up after 303 seconds of any failures, with 1,000 pending.

        It has no jitter, counts every attempt, and its breaker makes no pause longer.
        """
        preset = {
            "max_pending": 1000,
            "retry_jitter": 0.0,
            "count_unreachable_attempts": True,
            "breaker_open_for": 0.0,
        }
        return cls.model_validate(preset | dict(overrides))

    @classmethod
    def summarize_beyond_20(cls, **overrides: Unpack[SettingsOptions]) -> Self:
        """
        Return the preset of short queues, for sessions in which only recent messages matter.

        Of more than 20 waiting messages the oldest are dropped, and the next run is given
        a summary of them; collecting waits for a second of quiet.
        """
        return cls.model_validate(
            {"queue_cap": 20, "queue_overflow": "summarize", "queue_debounce": 1.0}
            | dict(overrides)
        )
