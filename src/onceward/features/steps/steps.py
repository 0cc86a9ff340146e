"""Call each step of a handler once: return its stored result, or call its function and store it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import sha256
from threading import get_ident
from typing import Any, Final, NoReturn
from uuid import UUID

from pydantic_core import from_json

from onceward.core.handle.call import CallHome, HandlerDeps, Suspended
from onceward.core.handle.invoke import wait_after
from onceward.core.handle.output import OutputStream
from onceward.core.handle.signatures import is_coroutine
from onceward.core.rows import declarations
from onceward.core.run.async_face import OffLoop, on_thread
from onceward.core.send.block import Transaction
from onceward.errors import (
    AnswerTimeout,
    Drop,
    InvalidArgument,
    LeaseLost,
    Paused,
    Reject,
    StepFailed,
    StepLimit,
)
from onceward.features.steps import awaited, stored
from onceward.features.steps.arguments import (
    base_name,
    check_kept,
    check_same,
    digests,
    result_type,
)
from onceward.features.steps.stored import StepName, StepRecord
from onceward.features.steps.time_limit import TimeLimit
from onceward.features.steps.verbs import StepFunction, Streams
from onceward.file import forks
from onceward.file.transaction import StoreTransaction
from onceward.hooks import StepFacts
from onceward.message.body import BYTES, JSON, decode, encode, message_type
from onceward.message.clock import Millis
from onceward.message.error_text import error_text, is_honest
from onceward.message.handler_options import StepOptions, StepRules, step_rules
from onceward.message.handler_work import StoredStep
from onceward.message.log import log
from onceward.message.names import byte_length, check_function
from onceward.message.times import Span, millis

ENDS: Final = (Reject, Drop, Paused, LeaseLost)
"""Exceptions of a step's function that end the message; the handler gets them at once."""
SLEEP: Final = "sleep"
"""Name of the steps that only wait."""
OUTPUT: Final = "output"
"""Name of the stream of a handler outside its steps."""
FOR_EVER: Final[Millis] = 1000 * 86_400 * 36_500
"""Milliseconds of a wait without a timeout: a century."""
ENDED: Final = "the handler has ended, so nothing of it can be stored"
UNOBSERVED: Final = nullcontext()
"""Block of a call that no observer watches."""
KEY: Final = 32
"""Digits of an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStep:
    """The running step, for ``step.key`` and ``step.tx``."""

    made_key: Callable[[], str]
    """Returns its idempotency key; called for functions that read it."""
    name: str = ""
    attempt: int = 1
    tx: Transaction | None = None
    within: MessageSteps | None = None
    """The steps that it belongs to; None outside handlers."""
    counts: dict[str, int] = field(default_factory=dict)
    """Nested steps, by name, that its function has called as plain functions."""
    context: Any = None
    """The ``step.context`` of its function: None, or what an integration offers there."""
    limit: TimeLimit | None = None

    @property
    def key(self) -> str:
        """Return the idempotency key: the same at each call of the handler."""
        return self.made_key()

    def inner_key(self, name: str) -> str:
        """Return a key for a nested function with ``@step``."""
        self.counts[name] = self.counts.get(name, 0) + 1
        return _digest(self.key, name, self.counts[name])


RUNNING: Final[ContextVar[RunningStep | None]] = ContextVar("onceward_step", default=None)


@dataclass(slots=True)
class StepCall:
    """One step of this call of the handler whose function must be called."""

    name: StepName
    arguments: str
    rules: StepRules
    wanted: Any
    """The type as which its result is read."""
    started_at: Millis
    failed: int = 0
    """Earlier failed calls of the function."""


@dataclass(frozen=True, slots=True)
class Found:
    """A stored result."""

    value: Any


class MessageSteps:
    """The steps of one message, in one call of its handler."""

    def __init__(self, deps: HandlerDeps, home: CallHome) -> None:
        self._home, self._db, self._settings = home, deps.db, deps.settings
        self._policy, self._rng, self._hooks = deps.policy, deps.rng, deps.hooks
        self._mint, self._make_streams = deps.outbox.composer.mint, partial(deps.make, "streams")
        self._known: dict[StepName, StepRecord] | None = None
        self._bytes = 0
        """Bytes of all stored results."""
        self._begun: dict[tuple[str, str], tuple[object, int]] = {}
        """The thread or task that has called each name, and how often."""
        self._lock = forks.new_lock()
        self._closed = False
        self.passed: Callable[[str, str], object] = _pass
        """Called, for tests, with the step and the point that the call has reached."""
        self._suspended: Suspended | None = None
        self._open: set[Any] = set()
        """A future for each step that a coroutine awaits; it ends with the step."""

    # -- calling ----------------------------------------------------------------------------

    def call(self, step: StepFunction) -> Any:
        """Return the result of a step: the stored one, or that of its function."""
        plain, rules = declared(step.function, step.options)
        if is_coroutine(plain):
            msg = f"step {base_name(plain, rules)} is async: make the handler async def"
            raise InvalidArgument(msg)
        begun = self._begin(plain, step, rules, caller=self._caller())
        while isinstance(begun, StepCall):
            if rules.tx:
                return self._call_in_tx(begun, partial(plain, *step.args, **step.named))
            try:
                with self._running(begun):
                    value = plain(*step.args, **step.named)
            except Exception as error:  # noqa: BLE001 - it is raised again, or the step is
                self._failed(begun, error)
            else:
                return self._ended(begun, value)
        return begun.value

    async def await_call(self, step: StepFunction, *, off_loop: OffLoop) -> Any:
        """Return the result of a step of a coroutine; a plain function runs on another thread."""
        import asyncio  # noqa: PLC0415 - async handlers only

        plain, rules = declared(step.function, step.options)
        coroutine = is_coroutine(plain)
        if coroutine and rules.tx:
            msg = f"step {base_name(plain, rules)}: with tx=True the function cannot be async def"
            raise InvalidArgument(msg)
        begin = partial(self._begin, plain, step, rules, caller=asyncio.current_task())
        work = partial(plain, *step.args, **step.named)
        async with self._as_open():
            begun = await off_loop.call(begin)
            if isinstance(begun, Found):
                return begun.value
            if rules.tx:
                return await off_loop.call(partial(self._call_in_tx, begun, work))
            if coroutine and rules.timeout is not None:
                work = partial(_in_time, work)
            work = work if coroutine else partial(on_thread, work)
            return await self._await_function(begun, work, off_loop)

    @asynccontextmanager
    async def _as_open(self) -> AsyncIterator[None]:
        """Prevent other tasks from ending the call while a block runs."""
        from asyncio import get_running_loop, wait  # noqa: PLC0415 - async handlers only

        ended = get_running_loop().create_future()
        self._open.add(ended)
        try:
            yield
        except Suspended:
            self._open.discard(ended)
            while self._open:
                await wait([*self._open])
            raise
        finally:
            self._open.discard(ended)
            ended.cancel()

    async def _await_function(
        self, begun: StepCall, work: Callable[[], Any], off_loop: OffLoop
    ) -> Any:
        while True:
            try:
                with self._running(begun):
                    value = await work()
            except Exception as error:  # noqa: BLE001 - it is raised again, or the step is
                await off_loop.call(partial(self._failed, begun, error))
            else:
                return await off_loop.call(partial(self._ended, begun, value))

    @contextmanager
    def _running(self, begun: StepCall, tx: Transaction | None = None) -> Iterator[None]:
        """Make ``step.key`` a step's key; raise TimeoutError if its function takes too long."""
        name = str(begun.name)
        span = begun.rules.timeout
        limit = None if span is None else TimeLimit(name, span)
        running = RunningStep(
            made_key=partial(self._key, begun.name),
            name=name,
            attempt=begun.failed + 1,
            tx=tx,
            within=self,
            limit=limit,
        )
        self.passed("before-step", name)
        before = RUNNING.set(running)
        try:
            with self._observed(begun):
                yield
                if limit is not None:
                    limit.check()
        finally:
            RUNNING.reset(before)
        self.passed("after-step", name)

    def once(
        self, name: str, args: tuple[Any, ...], work: Callable[[StoreTransaction], Any]
    ) -> Any:
        """Return the result of *work*, committed with it once; *args* identify it."""
        step = StepFunction(work, args, {})
        begun = self._begin(work, step, StepRules(name=name), caller=self._caller())
        if isinstance(begun, Found):
            return begun.value
        record = self._home.commits.write(partial(self._worked, begun=begun, work=work))
        self._note(begun.name, record)
        return _read(record, None)

    def _worked(
        self, tx: StoreTransaction, *, begun: StepCall, work: Callable[[StoreTransaction], Any]
    ) -> StepRecord:
        record, _ = self._result(begun, work(tx))
        self._store(tx, begun, record)
        return record

    def commit(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* separately, if the lease is still held; it may run again."""

        def fenced(tx: StoreTransaction) -> None:
            stored.prove(tx, self._home)
            work(tx)

        if self._closed:
            raise LeaseLost(ENDED)
        self._home.commits.free()
        self._home.commits.write(fenced)

    def _observed(self, begun: StepCall) -> AbstractContextManager[None]:
        """Return the block for observers of a call of a function."""
        if not self._hooks.observers:
            return UNOBSERVED
        from onceward.observed import observed_step  # noqa: PLC0415 - rarely needed

        leased = self._home.leased
        facts = StepFacts(
            agent=self._db.agent,
            session=leased.session,
            message_id=leased.id,
            name=str(begun.name),
            number=begun.failed + 1,
        )
        return observed_step(self._hooks.observers, facts)

    # -- time and chance --------------------------------------------------------------------

    def sleep(self, span: Span) -> None:
        """End the call for a span; return if that has passed."""
        self._sleep(span, caller=self._caller())

    async def await_sleep(self, span: Span, *, off_loop: OffLoop) -> None:
        """End the call of a coroutine for a span, once its other steps are stored."""
        from asyncio import current_task  # noqa: PLC0415 - async handlers only

        async with self._as_open():
            await off_loop.call(partial(self._sleep, span, caller=current_task()))

    def _sleep(self, span: Span, *, caller: object) -> None:
        pause = millis("span", span)
        self.refuse_inside("a sleep")
        with self._lock:
            name = StepName(SLEEP, "", self._ordinal(SLEEP, "", caller))
            record = self._stored.get(name)
        if record is None:
            self._check_room(name)
            self._home.commits.free()
            now = self._db.now()
            record = StepRecord("waiting", 0, "{}", due_at=now + pause)
            self._home.commits.write(
                partial(stored.store, home=self._home, name=name, record=record, started_at=now)
            )
            self._note(name, record)
        due_at = record.due_at or 0
        if due_at > self._db.now():
            date = datetime.fromtimestamp(due_at / 1000, UTC).isoformat(timespec="seconds")
            self.suspend(f"sleeps until {date}", lambda _: due_at)

    def wait(self, what: type | str, timeout: Span | None) -> Any:
        """Return the body of an awaited message, or end the call until one comes."""
        return self._wait(what, timeout, caller=self._caller())

    async def await_wait(self, what: type | str, timeout: Span | None, *, off_loop: OffLoop) -> Any:
        """Do so for a coroutine, once its other steps are stored."""
        from asyncio import current_task  # noqa: PLC0415 - async handlers only

        async with self._as_open():
            return await off_loop.call(partial(self._wait, what, timeout, caller=current_task()))

    def _wait(self, what: type | str, timeout: Span | None, *, caller: object) -> Any:
        self.refuse_inside("a wait")
        kind = what if isinstance(what, str) else message_type(what)
        label, wanted = f"wait {kind}", None if isinstance(what, str) else what
        with self._lock:
            name = StepName(label, "", self._ordinal(label, "", caller))
            record = self._stored.get(name)
        if record is None or record.state == "waiting":
            record = self._look(name, record, kind, timeout)
        if record.state == "failed":
            msg = f"no {kind} came into session {self._home.leased.session} in time"
            raise AnswerTimeout(msg, message_id=self._home.leased.id, reason="timeout")
        return _read(record, wanted)

    def _look(
        self, name: StepName, record: StepRecord | None, kind: str, timeout: Span | None
    ) -> StepRecord:
        """Take an awaited message, or record that it is awaited and end the call."""
        session, now = self._home.leased.session, self._db.now()
        if record is None:
            self._check_room(name)
            self._check_declared(kind)
            due_at = now + (FOR_EVER if timeout is None else millis("timeout", timeout))
            record = StepRecord("waiting", 0, "{}", due_at=due_at, awaits=kind)
            fresh = True
        else:
            fresh = False
        due_at = record.due_at or 0
        if fresh or due_at <= now or awaited.is_there(self._db.read, session, kind):
            self._home.commits.free()
            record = self._home.commits.write(
                partial(self._take_or_wait, name=name, record=record, late=due_at <= now)
            )
            self._note(name, record)
        if record.state == "waiting":
            self.suspend(f"waits for {kind}", partial(_unless_there, session, kind, due_at))
        return record

    def _take_or_wait(
        self, tx: StoreTransaction, *, name: StepName, record: StepRecord, late: bool
    ) -> StepRecord:
        found = awaited.take(tx, self._home.leased.session, str(record.awaits))
        if found is not None:
            size = byte_length(found.text)
            record = record._replace(
                state="done", media=found.media, result=found.text, bytes=size, due_at=None
            )
        elif late:
            record = record._replace(state="failed", error="no message in time", due_at=None)
        stored.store(tx, self._home, name, record, tx.now)
        return record

    def _check_declared(self, kind: str) -> None:
        if kind not in declarations.awaited(self._db.read):
            raise InvalidArgument(
                f"no message of type {kind} is kept for a wait: declare it with "
                f"agent.waits({kind!r}), or with its class, so that an early message is kept"
            )

    def now(self) -> datetime:
        """Return the file's time."""
        return datetime.fromtimestamp(self._db.now() / 1000, UTC)

    def uuid(self) -> UUID:
        """Return a new id."""
        return UUID(self._mint())

    def random(self) -> float:
        """Return a random number."""
        return self._rng.random()

    def _caller(self) -> object:
        """Return the identity of the current thread or task, to detect concurrent calls."""
        return get_ident() if self._home.commits.on_own_thread else object()

    # -- looking up -------------------------------------------------------------------------

    def _begin(
        self, function: Callable[..., Any], step: StepFunction, rules: StepRules, *, caller: object
    ) -> StepCall | Found:
        """Return the stored result of a step, or the step to call."""
        name = base_name(function, rules)
        self.refuse_inside(f"step {name}")
        arguments, wanted = digests(step.args, step.named, name), result_type(function)
        with self._lock:
            full = StepName(name, rules.version, self._ordinal(name, rules.version, caller))
            known = self._stored.get(full)
        if known is not None:
            check_same(full, known.arguments, arguments, self._home.leased.id)
            if known.state == "done":
                return Found(_read(known, wanted))
            if known.state == "failed":
                raise self._stored_failure(full, known)
        self._check_room(full)
        self._home.commits.free()
        begun = StepCall(full, arguments, rules, wanted, self._db.now())
        if known is not None and known.state == "retrying":
            begun.failed = known.attempts
            self._wait_until(full, known)
        return begun

    def _ordinal(self, name: str, version: str, caller: object) -> int:
        """Count the steps of a name; only one thread or task may call it, to fix the order."""
        if self._closed:
            raise LeaseLost(f"step {name}: its handler has ended, so nothing of it can be stored")
        known, count = self._begun.get((name, version), (caller, 0))
        if known is not caller and known != caller:
            raise InvalidArgument(
                f"two steps are called {name}, in threads or tasks whose order may vary: give "
                "each its own name with name='…'"
            )
        self._begun[name, version] = (known, count + 1)
        return count + 1

    @property
    def _stored(self) -> dict[StepName, StepRecord]:
        if self._known is None:
            leased = self._home.leased
            self._known = stored.of_message(
                self._db.read, leased.sender, leased.id, self._home.scope
            )
            self._bytes = sum(each.bytes for each in self._known.values())
        return self._known

    def _key(self, name: StepName) -> str:
        """Return the idempotency key of a step: the same at each call."""
        leased = self._home.leased
        parts = (self._db.agent, leased.sender, leased.id, self._home.scope, *name)
        return _digest(*parts)

    def _check_room(self, name: StepName) -> None:
        most = self._settings.tuning.max_steps
        known = self._stored
        if len(known) >= most and name not in known:
            self._refuse_full(name, f"it would be step {most + 1} of {most} (max_steps)")

    def _refuse_full(self, name: StepName, why: str) -> NoReturn:
        msg = (
            f"step {name} of message {self._home.leased.id} is refused: {why}:"
            " split the work into messages, or return references"
        )
        raise StepLimit(msg, message_id=self._home.leased.id)

    def of_others(self, sender: str, message_id: str, scope: str) -> tuple[StoredStep, ...]:
        """Return the steps of another call, in order."""
        found = stored.of_message(self._db.read, sender, message_id, scope)
        return tuple(_shown(name, record) for name, record in found.items())

    # -- storing ----------------------------------------------------------------------------

    def _ended(self, begun: StepCall, value: Any) -> Any:
        """Store the result of a step, and return it as later calls will get it."""
        record, read = self._result(begun, value)
        self._store_with_output(begun, record)
        self._note(begun.name, record)
        return read

    def _store_with_output(self, begun: StepCall, record: StepRecord) -> None:
        """Store a step; a finished one must have stored all its output."""
        if "_streams" not in self.__dict__:
            kept = partial(stored.store, home=self._home, name=begun.name, record=record)
            self._home.commits.write(partial(kept, started_at=begun.started_at))
            return

        def both(tx: StoreTransaction) -> None:
            self._store(tx, begun, record)
            store_output(tx)

        with self._streams.storing() as store_output:
            self._home.commits.write(both)

    def _call_in_tx(self, begun: StepCall, work: Callable[[], Any]) -> Any:
        """Call a function, and commit its writes with its result."""
        while True:
            failure: Exception | None = None
            try:
                with self._home.commits.block(str(begun.name)) as (yours, tx):
                    try:
                        with self._running(begun, yours):
                            value = work()
                    except Exception as error:
                        failure = error
                        raise
                    record, read = self._result(begun, value)
                    self._store(tx, begun, record)
                    if "_streams" in self.__dict__:
                        self._streams.flush()
            except Exception as error:
                if error is not failure:  # the commit's error: the result may be stored
                    raise
                self._failed(begun, failure)
            else:
                self._note(begun.name, record)
                return read

    def _result(self, begun: StepCall, value: Any) -> tuple[StepRecord, Any]:
        """Return the record of a result, and the result as it is read back, which must be valid."""
        media, text, _ = encode(value)
        size = byte_length(text)
        record = StepRecord(
            "done", begun.failed + 1, begun.arguments, media=media, result=text, bytes=size
        )
        read = _read(record, begun.wanted)
        if begun.wanted is not None:
            check_kept(begun.name, value, read)
        with self._lock:
            total = size + self._bytes
        most = self._settings.tuning.max_step_bytes
        if total > most:
            self._refuse_full(begun.name, f"the results take {total} of {most} (max_step_bytes)")
        return record, read

    def _store(self, tx: StoreTransaction, begun: StepCall, record: StepRecord) -> None:
        stored.store(tx, self._home, begun.name, record, begun.started_at)

    def _note(self, name: StepName, record: StepRecord) -> None:
        with self._lock:
            all_stored = self._stored
            known = all_stored.get(name)
            self._bytes += record.bytes - (known.bytes if known is not None else 0)
            all_stored[name] = record
        if record.state == "done":
            self.passed("stored-step", str(name))

    # -- failures ---------------------------------------------------------------------------

    def _failed(self, begun: StepCall, error: Exception) -> None:
        """Raise the error of a failure; return if the function must be called again at once."""
        if not is_honest(error):
            raise RuntimeError(f"the step raised {error_text(error)}") from error
        if isinstance(error, ENDS):
            raise error
        begun.failed += 1
        text, rules = error_text(error), begun.rules.retried
        record = StepRecord("given_up", begun.failed, begun.arguments, error=text)
        policy = (rules.retry if rules else None) or self._policy
        if not self._is_last(begun, error):
            wait, text = wait_after(error, begun.failed, policy=policy, rng=self._rng)
            due_at = self._db.now() + wait
            record = record._replace(state="retrying", error=text, due_at=due_at)
        elif begun.rules.keep_failure:
            record = record._replace(state="failed")
        elif begun.failed == 1:
            raise error  # it is not stored: its next call is like the first
        self._home.commits.write(partial(self._store, begun=begun, record=record))
        self._note(begun.name, record)
        if record.state == "failed":
            raise self._stored_failure(begun.name, record) from error
        if record.state == "given_up":
            raise error
        log.warning(
            "step failed", agent=self._db.agent, message_id=self._home.leased.id,
            step=str(begun.name), attempt=begun.failed, error=text,
        )  # fmt: skip
        if "_streams" in self.__dict__:
            self._streams.void(str(begun.name))
        self._wait_until(begun.name, record)

    def _is_last(self, begun: StepCall, error: Exception) -> bool:
        """Return whether the function is not called again after an error."""
        rules = begun.rules.retried
        if rules is None or rules.forbids_retry_after(error):
            return True
        if rules.attempts is not None:
            return begun.failed >= rules.attempts
        return (rules.retry or self._policy).exhausted(begun.failed)

    def _stored_failure(self, name: StepName, record: StepRecord) -> StepFailed:
        msg = f"step {name} failed after {record.attempts} attempts: {record.error}"
        return StepFailed(
            msg, message_id=self._home.leased.id, step=str(name), error=record.error or ""
        )

    def _wait_until(self, name: StepName, record: StepRecord) -> None:
        """Return if a step may be called again; otherwise end the handler's call until then."""
        due_at = record.due_at or 0
        if due_at > self._db.now():
            self.suspend(f"waits to call step {name} again: {record.error}", lambda _: due_at)

    def suspend(self, reason: str, until: Callable[[StoreTransaction], Millis]) -> None:
        """End the call of the handler until then; return if that has passed."""
        suspended = Suspended(reason[:500], until)
        self._suspended = suspended
        self._home.commits.wait(suspended)
        self._suspended = None

    # -- the call ---------------------------------------------------------------------------

    def refuse_inside(self, what: str) -> None:
        """Raise InvalidArgument inside the function of one of these steps."""
        running = RUNNING.get()
        if running is not None and running.within is self:
            msg = f"{what} inside a step cannot be found again: make it in the handler itself"
            raise InvalidArgument(msg)

    def has(self, message_id: str | None) -> bool:
        """Return False: a step makes no request."""
        del message_id
        return False

    def keep(self, tx: StoreTransaction) -> None:
        """Do nothing: each step was stored when it ended."""

    def end_call(self) -> None:
        """End a call that has returned although it must continue later."""
        if self._suspended is not None:
            raise self._suspended
        if "_streams" in self.__dict__:
            self._streams.end()

    def close(self) -> None:
        """Take no further step."""
        with self._lock:
            self._closed = True
        if "_streams" in self.__dict__:
            self._streams.close()

    # -- output -----------------------------------------------------------------------------

    @cached_property
    def _streams(self) -> Streams:
        made: Streams = self._make_streams(self._home)
        return made

    def stream(self, name: str | None) -> OutputStream:
        """Return an output stream; without a name, the stream of the running step."""
        running = RUNNING.get()
        if name is None:
            name = running.name if running is not None and running.within is self else OUTPUT
        return self._streams.open(name)


async def _in_time(work: Callable[[], Any]) -> Any:
    """Await the function of the running step, within its time limit."""
    running = RUNNING.get()
    limit = None if running is None else running.limit
    return await work() if limit is None else await limit.await_in_time(work())


def _pass(_point: str, _step: str) -> None:
    """Continue."""


def _unless_there(session: str, kind: str, due_at: Millis, tx: StoreTransaction) -> Millis:
    """Return when a wait ends: now, if the message has come since the last check."""
    return tx.now if awaited.is_there(tx.rows, session, kind) else due_at


def _digest(*parts: object) -> str:
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:KEY]


def declared(
    function: Callable[..., Any], options: StepOptions
) -> tuple[Callable[..., Any], StepRules]:
    """Return the function of a step and its options, merged with those of ``@step``."""
    declared = getattr(function, "__onceward_step__", None)
    if declared is None:
        return check_function("function", function), step_rules(options)
    plain, own = declared
    return plain, step_rules({**own, **options})


def _shown(name: StepName, record: StepRecord) -> StoredStep:
    result = None if record.result is None else _read(record, None)
    return StoredStep(str(name), record.state, record.attempts, result, record.error)


def _read(record: StepRecord, wanted: Any) -> Any:
    """Return a result as the return annotation's type."""
    data = from_json(record.result or "null")
    if record.media == BYTES:
        return decode(None, data, wanted)
    return decode(data, None, wanted, record.media or JSON)
