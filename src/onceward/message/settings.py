"""Define the settings of a postbox, each with its unit, default and bounds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
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
from onceward.message.body import LargeBodyStore
from onceward.message.clock import Clock
from onceward.message.ids import IdSource
from onceward.message.names import PREFIX, no_option
from onceward.message.parcel import Durability
from onceward.message.retry import DEFAULT_RETRY, RetryPolicy, policy
from onceward.message.times import Span, seconds
from onceward.message.validators import describe_errors
from onceward.message.vocabulary import Aborted, Priority, QueueMode, QueueOverflow


class SettingsOptions(TypedDict, total=False):
    """The settings that ``Postbox`` takes as keywords; ``Settings`` says what each means."""

    durability: Durability
    accept_weaker: bool
    foreign_keys: bool
    busy_timeout: Span
    network_filesystem: bool
    max_body: int
    large_body: int | None
    large_body_store: LargeBodyStore | str | None
    max_large_body: int
    max_pending: int
    max_inbox: int
    hold_unknown: bool
    ack: Literal["processed", "stored"]
    max_hops: int
    delivery_retry: RetryPolicy | str
    delivery_attempts: int | None
    count_unreachable_attempts: bool
    ack_timeout: Span
    deliver_timeout: Span
    lease: Span
    handler_timeout: Span
    handler_retry: RetryPolicy | str
    handler_attempts: int | None
    workers: int | None
    max_runs: int
    queue_mode: QueueMode
    queue_debounce: Span
    queue_cap: float | None
    queue_overflow: QueueOverflow
    queue_aborted: Aborted
    retention: Span
    result_retention: Span
    stop_timeout: Span
    topics: tuple[str, ...] | None
    session_topics: dict[str, tuple[str, ...]]
    ephemeral_priorities: tuple[Priority, ...]
    transitions: bool
    http_ca: Path | str | None
    http_certificate: Path | str | None
    http_certificate_key: Path | str | None
    http_plain_hosts: tuple[str, ...]
    webhook_private_hosts: tuple[str, ...]
    audit: Path | str | None
    search: bool
    tuning: Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """
    Parts of a postbox that a test controls; None means as in production.

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
    """Read a timedelta, or a duration as text, such as 7d; leave other values to the field."""
    return seconds("", value) if isinstance(value, str | timedelta) else value


Spelled = BeforeValidator(_spelled)
Seconds = Annotated[float, Spelled, Field(ge=0, le=1e9, allow_inf_nan=False)]
Positive = Annotated[float, Spelled, Field(gt=0, le=1e9, allow_inf_nan=False)]
DAY: Final = 86_400.0


def _listed(value: Any) -> Any:
    """Read a list from an environment variable, separated by commas."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


def _mapped(value: Any) -> Any:
    """Read a mapping from an environment variable, written as JSON."""
    return json.loads(value) if isinstance(value, str) else value


def _stores_bodies(value: Any) -> Any:
    """Return a store, its URI, or None for an empty text."""
    verbs = ("put", "get", "delete", "names")
    if value is None or isinstance(value, str):
        return value or None
    if missing := [verb for verb in verbs if not callable(getattr(value, verb, None))]:
        raise ValueError(f"a store of bodies needs the methods {', '.join(missing)}")
    return value


def _parsed(value: Any) -> Any:
    """Read a retry policy that is given as text."""
    return RetryPolicy.parse(value) if isinstance(value, str) else value


Policy = Annotated[
    RetryPolicy,
    GetPydanticSchema(
        lambda _source, _handler: core_schema.is_instance_schema(
            RetryPolicy, serialization=core_schema.to_string_ser_schema(when_used="always")
        )
    ),
    BeforeValidator(_parsed),
]
BodiesIn = Annotated[
    LargeBodyStore | str | None,
    GetPydanticSchema(lambda _source, _handler: core_schema.any_schema()),
    BeforeValidator(_stores_bodies),
]
MaybePath = Annotated[Path | None, BeforeValidator(lambda given: given or None)]
Attempts = Annotated[int, Field(ge=1, lt=2**31)]


class Checked(BaseModel):
    """A set of values that refuses wrong names and values as ``InvalidArgument``."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __init__(self, **given: Any) -> None:
        """Check the values."""
        kind, known = type(self).__name__.lower(), type(self).model_fields
        if unknown := given.keys() - known.keys():
            raise InvalidArgument(no_option(kind, unknown, known, in_tuning(unknown)))
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise InvalidArgument(f"{kind}: {describe_errors(error)}") from error


class Tuning(Checked):
    """
    Settings whose defaults fit nearly every agent: ``Postbox(…, tuning=Tuning(carriers=8))``.

    Provisional: a later version may change or remove one. The environment has them as
    ``ONCEWARD_<NAME>``, the project under ``[tool.onceward.tuning]``.
    """

    checkpoint_pages: Annotated[int, Field(ge=1)] = 1000
    """Automatic checkpoint after this many pages in the WAL; none beside Litestream."""
    wal_limit: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    """WAL size from which maintenance forces a checkpoint."""
    max_backup_age: Positive = DAY
    """Age from which doctor warns of the newest backup, and a drill of a replica fails."""
    body_threshold: Annotated[int, Field(ge=0)] = 3584
    """Bodies of more bytes than this are stored beside their message, not in it."""
    claim_messages: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Maximum messages of one claim."""
    share_commit_for: Seconds = 0.02
    """Maximum time in which quick handlers share one commit; 0 gives each its own."""
    carriers: Annotated[int, Field(ge=1, le=1024)] = 64
    """Maximum peers that are pushed to at once; at most 8 of them failed last time."""
    parcel_max_messages: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Maximum messages of one push; over a slow network up to 10,000."""
    parcel_max_bytes: Annotated[int, Field(ge=1 << 10)] = 4 << 20
    """Maximum size of a push; a single message may be larger."""
    retention_slice: Annotated[int, Field(ge=1)] = 500
    """Rows deleted in one transaction; writers get their turn between two of them."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """Failures in a row that open a peer's breaker."""
    breaker_open_for: Seconds = 30.0
    """How long an open breaker stops pushes to its peer before the next try."""
    breaker_successes: Annotated[int, Field(ge=1)] = 2
    """Pushes that must succeed before a half-open breaker closes."""
    stream_batch_for: Seconds = 0.1
    """Maximum time that an output chunk waits for others to share their commit."""
    stream_batch_bytes: Annotated[int, Field(ge=1)] = 16 << 10
    """Bytes of output after which it is committed at once."""
    max_stream_chunks: Annotated[int, Field(ge=1)] = 100_000
    """Maximum output chunks of one message, in all its streams."""
    max_stream_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """Maximum output size of one message, in all its streams."""
    max_steps: Annotated[int, Field(ge=1)] = 1000
    """Maximum steps that the handler of one message may store."""
    max_step_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """Maximum total size of the step results of one message."""
    abort_grace: Seconds = 5.0
    """
    How long a session waits for an aborted call to return before its next run starts.

    A coroutine is then cancelled again, and gets the same time again.
    """
    blocked_after: Seconds = 1.0
    """
    How long a coroutine may block its event loop before the log names it; with 0 none is named.

    It stops all async handlers of that loop, those of other agents included.
    """
    maintenance_interval: Positive = 60.0
    """Time between two rounds of pruning and checkpoints."""
    poll_interval: Seconds = 0.1
    """
    How often ``PRAGMA data_version`` is read, in case a notification is lost; 0: never.

    A process with more than ten files reads it less often in each, down to once a second.
    """


def in_tuning(names: Iterable[str]) -> str:
    """Return how to write the options that are fields of ``Tuning``; nothing for others."""
    found = sorted(Tuning.model_fields.keys() & set(names))
    return f"; write tuning=Tuning({', '.join(f'{each}=…' for each in found)})" if found else ""


def merge_tuning(*layers: Any) -> Any:
    """Return the fields that each layer sets, the last one first; an unfit layer as it is."""
    found: dict[str, Any] = {}
    for layer in layers:
        if isinstance(layer, Tuning):
            found |= {name: getattr(layer, name) for name in layer.model_fields_set}
        elif isinstance(layer, Mapping):
            found |= layer
        else:
            return layer
    return found


class Settings(Checked):
    """
    How one postbox behaves.

    Precedence: keyword at Postbox, then a ``Settings`` object, then ``ONCEWARD_<NAME>`` in the
    environment, then ``[tool.onceward]`` in the nearest pyproject.toml, then the default here.
    Durations are in seconds, sizes in bytes of UTF-8.
    """

    durability: Durability = "safe"
    """``safe``: a commit survives power loss; ``fast``: it only survives SIGKILL."""
    accept_weaker: bool = False
    """Let a receipt from a peer of weaker durability settle a message."""
    foreign_keys: bool = False
    """Enforce foreign keys of your own tables; the file keeps it, for all that open it later."""
    busy_timeout: Seconds = 30.0
    """Deadline of one unit of work for getting the file from other writers, reads included."""
    network_filesystem: bool = False
    """Open the file even on a file system whose locks are not trusted."""

    max_body: Annotated[int, Field(ge=1)] = 1 << 20
    """Maximum body; larger ones are refused on send and on receipt."""
    large_body: Annotated[int, Field(ge=4096)] | None = None
    """
    Size from which a body is stored outside its message, in ``large_body_store``; None: none.

    Only for recipients beside this file: messages to others carry it, up to ``max_body``.
    """
    large_body_store: BodiesIn = None
    """
    Where large bodies are: a bucket such as ``s3://bucket/home``, or a ``LargeBodyStore`` of yours.

    None: files in the folder ``bodies`` of the home. Recipients need the same setting.
    """
    max_large_body: Annotated[int, Field(ge=1)] = 256 << 20
    """Maximum body outside its message; larger ones are refused on send."""
    max_pending: Annotated[int, Field(ge=1)] = 100_000
    """Maximum waiting messages in the outbox of this file."""
    max_inbox: Annotated[int, Field(ge=1)] = 1_000_000
    """Unhandled messages that the inbox accepts before it answers ``busy``."""
    hold_unknown: bool = False
    """Keep messages for recipients that are not known yet instead of refusing them."""
    ack: Literal["processed", "stored"] = "processed"
    """Event that settles a sent message: the handler's commit, or the peer's durable receipt."""

    max_hops: Annotated[int, Field(ge=1, lt=2**31)] = 64
    """Maximum messages that may have led to an accepted one: loops of replies end there."""

    delivery_retry: Policy = DEFAULT_RETRY
    """
    When to deliver again, and when to give up: a RetryPolicy, or its text.

    The default is 10 attempts that wait 1 second, then twice as long, up to 60, jitter included; an
    open breaker has its own time. Retries for a message that its peer has stored are unlimited.
    """
    delivery_attempts: Attempts | None = None
    """Attempts to deliver before a dead letter; None: as in ``delivery_retry``."""
    count_unreachable_attempts: bool = False
    """Count attempts that reached no peer, too."""
    ack_timeout: Seconds = 30.0
    """
    Time after which the peer is asked about a stored but unhandled message.

    The time doubles with each question, up to sixteen times. It is prolonged by up to a quarter, so
    that one push asks about several messages.
    """
    deliver_timeout: Seconds = 30.0
    """Maximum time of one push; a longer one is given up, and its peer backs off."""

    lease: Positive = 30.0
    """How long a claim lasts without a heartbeat."""
    handler_timeout: Positive = 3600.0
    """Maximum time of one handler; its lease is not prolonged beyond."""
    handler_retry: Policy = DEFAULT_RETRY
    """When to call a failing handler again, and when to give up: a RetryPolicy, or its text."""
    handler_attempts: Attempts | None = None
    """Calls of a failing handler before a dead letter; None: as in ``handler_retry``."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """
    Handlers that run at the same time, each on its worker thread.

    None means 1, or 8 if a handler is ``async def``, or the largest ``concurrency`` of a handler;
    functions without ``concurrency`` then run one at a time.
    """

    max_runs: Annotated[int, Field(ge=1, le=1000)] = 16
    """Maximum runs of different sessions that this process has open at the same time."""
    queue_mode: QueueMode = "followup"
    """Mode of a busy session with runs, if neither session nor handler sets one."""
    queue_debounce: Annotated[float, Spelled, Field(le=1e9, allow_inf_nan=False)] = 1.0
    """Quiet time that a collect waits for; negative counts as 0."""
    queue_cap: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """Maximum waiting messages in one session's queue; None: any number; fractions are cut off."""
    queue_overflow: QueueOverflow = "reject"
    """Policy of a full queue: ``reject`` new ones, ``drop_old``, or ``summarize`` them."""
    queue_aborted: Aborted = "return"
    """End of an aborted run's messages when partial output was stored."""

    retention: Seconds = 7 * DAY
    """
    How long acked and processed rows, dedup records and transitions are kept.

    Must be at least as long as a message may be retried.
    """
    result_retention: Seconds = 3600.0
    """How long results and the progress of handlers are kept; 0 keeps none."""
    stop_timeout: Seconds = 5.0
    """Maximum wait for running handlers and pushes when the postbox stops."""
    topics: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = None
    """The topics that may be sent and polled; any other is a TopicError. None allows all."""
    session_topics: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_mapped)] = {}
    """Topics of single sessions, which override ``topics``; in the environment as JSON."""
    ephemeral_priorities: Annotated[tuple[Priority, ...], BeforeValidator(_listed)] = ()
    """Priorities whose messages to mailboxes are ephemeral by default."""
    transitions: bool = False
    """Write every transition of a message into the table of transitions."""
    http_ca: MaybePath = None
    """File of the authorities that sign certificates of https peers; None: the system's."""
    http_certificate: MaybePath = None
    """File of the certificate for https peers (mTLS); None: none."""
    http_certificate_key: MaybePath = None
    """File of that certificate's key; None: in the certificate file."""
    http_plain_hosts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Hosts that may be reached without TLS."""
    webhook_private_hosts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Hosts that webhooks may call though their addresses are private."""
    audit: MaybePath = None
    """File that gets one JSON line, without body, per send, poll and expire; None: none."""
    search: bool = False
    """Index the words of bodies, for ``search``."""
    tuning: Tuning = Tuning.model_construct()
    """Values that rarely need another than their default; see ``Tuning``."""

    def __init__(self, **given: Unpack[SettingsOptions]) -> None:
        """Check the settings; raise InvalidArgument for a value out of its bounds or a name."""
        super().__init__(**given)

    @classmethod
    @lru_cache(maxsize=16)
    def _inherit(cls, *, busy_timeout: float) -> Self:
        """Return defaults that override nothing, to open a file with its owner's settings."""
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
        variables = {PREFIX + field.upper(): field for field in cls.model_fields}
        # for a name that it does not have, os.environ handles two exceptions: 5 µs
        values = dict(project) | {variables[n]: env[n] for n in env if n in variables}
        if given is not None:
            values |= {name: getattr(given, name) for name in given.model_fields_set}
        values |= overrides
        tuned = {PREFIX + field.upper(): field for field in Tuning.model_fields}
        tuning = merge_tuning(
            project.get("tuning", {}),
            {tuned[n]: env[n] for n in env if n in tuned},
            {} if given is None else given.tuning,
            overrides.get("tuning", {}),
        )
        if tuning != {}:
            values["tuning"] = tuning
        found = cls(**values)
        found._check_retention()
        return found

    @property
    def delivery_policy(self) -> RetryPolicy:
        """The retry policy of deliveries."""
        return policy(self.delivery_retry, self.delivery_attempts)

    @property
    def handling_policy(self) -> RetryPolicy:
        """The retry policy of handlers without their own."""
        return policy(self.handler_retry, self.handler_attempts)

    def _check_retention(self) -> None:
        """Raise InvalidArgument if dedup records would be pruned before a message's last retry."""
        retried = self.delivery_policy
        if self.retention < retried.horizon:
            raise InvalidArgument(
                f"settings: retention {self.retention:g} s is shorter than the"
                f" {retried.horizon:g} s in which a message is delivered again ({retried}): a late"
                " retry would be refused as stale; retain longer, or retry less"
            )

    @classmethod
    def five_minutes(cls, **overrides: Unpack[SettingsOptions]) -> Self:
        """
        Return the preset that gives up after 303 seconds of any failure, with 1,000 pending.

        It has no jitter, counts every attempt, and its breaker makes no delay longer.
        """
        preset: SettingsOptions = {
            "max_pending": 1000,
            "delivery_retry": "11x ±0%",
            "handler_retry": "11x ±0%",
            "count_unreachable_attempts": True,
        }
        tuning = merge_tuning({"breaker_open_for": 0.0}, overrides.get("tuning", {}))
        return cls(**preset | overrides | {"tuning": tuning})

    @classmethod
    def summarize_beyond_20(cls, **overrides: Unpack[SettingsOptions]) -> Self:
        """
        Return the preset of short queues, for sessions in which only recent messages matter.

        Of more than 20 waiting messages the oldest are dropped, and the next run gets a summary of
        them; collecting waits for a second of quiet.
        """
        preset: SettingsOptions = {
            "queue_cap": 20,
            "queue_overflow": "summarize",
            "queue_debounce": 1.0,
        }
        return cls(**preset | overrides)
