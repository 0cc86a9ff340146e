"""Collect the output of a handler, and commit it in batches while the handler runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from onceward.core.handle.call import CallHome, HandlerDeps
from onceward.core.handle.output import OutputStream
from onceward.core.run.threads import EngineTask, engine_threads
from onceward.errors import LeaseLost, OncewardError, StreamLimit
from onceward.features.streams import stored
from onceward.features.streams.stored import BYTES, JSON, RESTART, Batch, Tail
from onceward.file import forks
from onceward.file.transaction import StoreTransaction
from onceward.message import body
from onceward.message.log import log
from onceward.message.names import byte_length, plain_text

FULL: Final = 1000
"""Maximum chunks of one batch."""
NOTHING: Final = Tail(0, 0, 0)
PAUSE: Final = 1.0
"""Seconds after which a failed commit of chunks during the handler is tried again."""
Work = Callable[[StoreTransaction], None]
Commit = Callable[[Work], None]


class MessageStreams:
    """The output of one call of a handler, in one order across its streams."""

    def __init__(self, deps: HandlerDeps, home: CallHome) -> None:
        self._home, self._db, self._settings = home, deps.db, deps.settings
        self._lock = forks.new_lock()
        self._batches: list[Batch] = []
        self._waits = self._waits_bytes = 0
        """Chunks that wait for the next commit, and their bytes."""
        self._since = 0.0
        self._earlier: dict[str, Tail] | None = None
        """The output of earlier calls that this one has not restarted, by stream."""
        self._position = self._count = self._bytes = 0
        self._closed = False
        self._task: EngineTask | None = None

    def open(self, name: str) -> OutputStream:
        """Return the stream of a name."""
        return OutputStream(plain_text("stream", name), self._add, self._flush)

    # -- collecting -------------------------------------------------------------------------

    def _add(self, name: str, chunk: object) -> bool:
        """Add a chunk; return whether a commit is due."""
        media, text, _ = body.encode(chunk)
        kind = BYTES if media == body.BYTES else JSON
        with self._lock:
            if self._closed:
                msg = f"stream {name}: its handler has ended, so that nothing of it can be stored"
                raise LeaseLost(msg)
            earlier = self._look_back()
            self._check_room(name, byte_length(text), earlier.get(name, NOTHING))
            if name in earlier:
                self._begin_again(name, earlier.pop(name))
            self._put(name, kind, text)
            due = self._is_due()
        if not due:
            self._plan()
        return due

    def _look_back(self) -> dict[str, Tail]:
        """Return the streams of earlier calls."""
        if self._earlier is None:
            leased = self._home.leased
            self._earlier = stored.tails(self._db.read, leased.sender, leased.id)
            for each in self._earlier.values():
                self._position = max(self._position, each.last)
                self._count, self._bytes = self._count + each.chunks, self._bytes + each.bytes
        return self._earlier

    def _begin_again(self, name: str, void: Tail) -> None:
        """Mark where the output of this call begins, and stop counting that of earlier calls."""
        self._count, self._bytes = self._count - void.chunks, self._bytes - void.bytes
        self._put(name, RESTART, "null")

    def _put(self, name: str, kind: str, text: str) -> None:
        if not self._batches:
            self._since = self._db.clock.monotonic()
        if not self._batches or self._batches[-1].name != name:
            self._batches.append(Batch(name, self._position + 1, [], []))
        self._batches[-1].kinds.append(kind)
        self._batches[-1].texts.append(text)
        self._position += 1
        if kind == RESTART:
            return
        size = byte_length(text)
        self._count, self._bytes = self._count + 1, self._bytes + size
        self._waits, self._waits_bytes = self._waits + 1, self._waits_bytes + size

    def _check_room(self, name: str, size: int, void: Tail) -> None:
        tuning = self._settings.tuning
        chunks, most = tuning.max_stream_chunks, tuning.max_stream_bytes
        size += self._bytes - void.bytes
        if self._count - void.chunks >= chunks:
            why = f"it would be chunk {chunks + 1} of {chunks} (max_stream_chunks)"
        elif size > most:
            why = f"its chunks would take {size} of {most} (max_stream_bytes)"
        else:
            return
        leased = self._home.leased
        msg = f"a chunk of stream {name} of message {leased.id} is refused: {why}"
        raise StreamLimit(msg, message_id=leased.id)

    def _is_due(self) -> bool:
        return (
            self._waits >= FULL
            or self._waits_bytes >= self._settings.tuning.stream_batch_bytes
            or self._wait() <= 0
        )

    def _wait(self) -> float:
        """Return the seconds until the waiting chunks must be committed."""
        waited = self._db.clock.monotonic() - self._since
        return self._settings.tuning.stream_batch_for - waited

    # -- committing -------------------------------------------------------------------------

    def _flush(self) -> None:
        """Commit the waiting chunks, with the handler's writes if it has any."""
        self._commit(self._home.commits.beside)

    def end(self) -> None:
        """Commit the rest with the end of the call."""
        if self._batches:
            self._commit(self._home.commits.at_end)

    def close(self) -> None:
        """Refuse further chunks; also commit the output of a failed call."""
        with self._lock:
            self._closed = True
        if self._batches:
            with suppress(OncewardError):
                self._flush()
        if self._task is not None:
            engine_threads().end(self._task)

    def flush(self) -> None:
        """Commit the waiting chunks, with the transaction of the calling thread."""
        if self._batches:
            self._flush()

    def void(self, name: str) -> None:
        """Restart a stream at its next chunk: its step failed, and is called again."""
        self.flush()
        with self._lock:
            earlier, leased = self._look_back(), self._home.leased
            tail = stored.tails(self._db.read, leased.sender, leased.id).get(name)
            if tail is not None:
                earlier[name] = tail

    @contextmanager
    def storing(self) -> Iterator[Work]:
        """
        Yield the work that stores the waiting chunks in the block's commit; it may run again.

        Chunks are taken inside the transaction: a thread that waits for it holds none.
        """
        taken: list[Batch] = []
        try:
            yield partial(self._store, taken=taken)
        except LeaseLost:
            raise
        except OncewardError:  # they leave with a later commit
            with self._lock:
                self._batches = taken + self._batches
            raise

    def _commit(self, commit: Commit) -> None:
        with self.storing() as work:
            commit(work)

    def _store(self, tx: StoreTransaction, *, taken: list[Batch]) -> None:
        with self._lock:
            taken += self._batches
            self._batches = []
            self._waits = self._waits_bytes = 0
        if taken:
            stored.add(tx, home=self._home, batches=taken)
            tx.wake(self._tell)

    def _tell(self) -> None:
        self._db.notifier.notify("in")

    # -- pauses -----------------------------------------------------------------------------

    def _plan(self) -> None:
        """Commit the waiting chunks in time, even if the handler adds no more."""
        if not engine_threads().running:
            return
        if self._task is None:
            self._task = EngineTask(f"onceward-stream-{self._db.agent}", self._flush_late)
            engine_threads().plan(self._task, self._settings.tuning.stream_batch_for)
        elif self._waits == 1:
            engine_threads().notify(self._task)

    def _flush_late(self) -> float | None:
        with self._lock:
            wait = self._wait() if self._batches and not self._closed else None
        if wait is None or wait > 0:
            return wait
        try:
            self._commit(self._home.commits.write)
        except OncewardError as error:  # for example because the handler has written
            log.failure(
                "debug",
                "chunks wait",
                error,
                agent=self._db.agent,
                message_id=self._home.leased.id,
            )
            return None if isinstance(error, LeaseLost) else PAUSE
        return None
