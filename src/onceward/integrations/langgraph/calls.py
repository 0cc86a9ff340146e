"""Keep the checkpoints of a handler's call until they may be committed."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Collection, Iterator
from threading import Condition
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig

from onceward import (
    AsyncContext,
    AsyncPostbox,
    AsyncRun,
    BatchContext,
    Context,
    Postbox,
    Reject,
    Run,
    step,
)
from onceward.errors import InvalidArgument
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.integrations.kept_context import KeptContext
from onceward.integrations.langgraph.stored import (
    CheckpointPlace,
    CheckpointRow,
    TaskWrite,
    WriteRow,
    store,
)

T = TypeVar("T")
HANDLED: Final = "__onceward_handled"
"""The key of a config that names the handler; a thread of LangGraph does not know it else."""
NO_HANDLER: Final = "no handler runs here: name a postbox, OncewardSaver(box)"
BY_INVOKE: Final = (
    "in a handler a graph is run by invoke(graph, given, ctx) of onceward.integrations.langgraph;"
    " its state is changed with thread_config(ctx)"
)
CONTEXT_CHANGED: Final = (
    "a node changed the context of its graph ({}), which no checkpoint stores: a call of the"
    " handler that goes on after the node would not find the change; return it as part of the state"
)
NULL_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""Task of the writes that a command brings along; it is given them again at the next call."""
CHECKPOINT_WITHIN: Final = 30
"""Seconds until the checkpoint that a node began with must have come."""


class CallWrites:
    """
    The checkpoints, and the writes of tasks, of one call of a handler.

    A task that has finished is committed at once, by itself, with the checkpoints before it: a
    call after a kill goes on there. Writes that a command brought along, or that only say that
    a task is interrupted, wait for the next checkpoint. The rest is committed with the
    processed mark.
    """

    def __init__(self) -> None:
        self.threads: set[str] = set()
        """Threads that this call has run a graph on."""
        self.contexts: list[KeptContext] = []
        """The objects that the nodes of its graphs share, and may not change."""
        self._changed = Condition()
        self._known: set[CheckpointPlace] = set()
        self._checkpoints: dict[CheckpointPlace, CheckpointRow] = {}
        self._writes: dict[tuple[CheckpointPlace, str, int], TaskWrite] = {}

    def found(self, place: CheckpointPlace) -> None:
        """Note that a checkpoint is in the file."""
        with self._changed:
            self._known.add(place)

    def add(self, row: CheckpointRow) -> None:
        """Keep a checkpoint."""
        with self._changed:
            self._known.add(row.place)
            self._checkpoints[row.place] = row
            self._changed.notify_all()

    def add_writes(self, writes: Collection[TaskWrite]) -> None:
        """
        Keep the writes of a task.

        Raises:
            Reject: a node has changed the context of its graph.

        """
        for context in self.contexts:
            if changed := context.changed():
                raise Reject(CONTEXT_CHANGED.format(", ".join(map(repr, changed))))
        with self._changed:
            for each in writes:
                key = (each.row.place, each.row.task, each.row.idx)
                if each.replaces or key not in self._writes:
                    self._writes[key] = each

    def wait_for(self, place: CheckpointPlace) -> bool:
        """Wait until a checkpoint has come, which another thread brings; say whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: place in self._known, CHECKPOINT_WITHIN)

    # -- committing -------------------------------------------------------------------------

    @property
    def has_finished_task(self) -> bool:
        """Whether a task has finished whose checkpoint is known."""
        with self._changed:
            return any(True for _ in self._finished())

    def commit(self, handled: Any, begun: CheckpointPlace | None = None) -> None:
        """
        Commit the tasks that have finished, and the checkpoints that they, or *begun*, need.

        Where the handler has written, all of it waits for its end.
        """
        with self._changed:
            due = self._due(begun)
        if due.checkpoints or due.writes:
            try:
                handled._steps.commit(lambda tx: store(tx, due.checkpoints, due.writes))
            except InvalidArgument:  # it is committed with what the handler has written
                return
            self._forget(due)

    def commit_rest(self, tx: StoreTransaction) -> None:
        """Store all that is left, in the transaction of the processed mark."""
        with self._changed:
            rest = _Rows([*self._checkpoints.values()], [*self._writes.values()])
        if rest.checkpoints or rest.writes:
            store(tx, rest.checkpoints, rest.writes)

    def _finished(self) -> Iterator[TaskWrite]:
        """Return the writes of tasks that have finished."""
        return (
            each
            for each in self._writes.values()
            if not each.replaces and each.row.task != NULL_TASK and each.row.place in self._known
        )

    def _due(self, begun: CheckpointPlace | None) -> _Rows:
        finished = [*self._finished()]
        ids = [each.row.id for each in finished] + ([] if begun is None else [begun.id])
        upto = max(ids, default="")
        checkpoints = [row for row in self._checkpoints.values() if row.id <= upto]
        newest = {row[:2]: row.id for row in sorted(checkpoints)}
        passed = [
            each
            for each in self._writes.values()
            if each.row.id < newest.get(each.row[:2], "") and each not in finished
        ]
        return _Rows(checkpoints, passed + finished)

    def _forget(self, due: _Rows) -> None:
        with self._changed:
            for row in due.checkpoints:
                if self._checkpoints.get(row.place) is row:
                    del self._checkpoints[row.place]
            for each in due.writes:
                key = (each.row.place, each.row.task, each.row.idx)
                if self._writes.get(key) is each:
                    del self._writes[key]

    # -- reading ----------------------------------------------------------------------------

    def newest(self, thread: str, namespace: str, checkpoint: str | None) -> CheckpointRow | None:
        """Return a checkpoint that is kept; the newest one without an id."""
        with self._changed:
            found = [
                row
                for row in self._checkpoints.values()
                if row[:2] == (thread, namespace) and checkpoint in {None, row.id}
            ]
        return max(found, key=lambda row: row.id, default=None)

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all checkpoints that are kept."""
        with self._changed:
            return [*self._checkpoints.values()]

    def over(self, place: CheckpointPlace, stored: list[WriteRow]) -> list[WriteRow]:
        """Return the writes of a checkpoint, those that are kept over those of the file."""
        rows = {(row.task, row.idx): row for row in stored}
        with self._changed:
            for (of, task, idx), each in self._writes.items():
                if of == place and (each.replaces or (task, idx) not in rows):
                    rows[task, idx] = each.row
        return [*rows.values()]


class _Rows(NamedTuple):
    checkpoints: list[CheckpointRow]
    writes: list[TaskWrite]


_calls: WeakKeyDictionary[Any, CallWrites] = WeakKeyDictionary()


class Here(NamedTuple):
    """Where a saver is called: in which file, and in which call of a handler of it."""

    db: Database
    handled: Any = None
    """The context, or the run; None outside of handlers of this file."""
    call: CallWrites | None = None


def here(box: Postbox | AsyncPostbox | None, config: RunnableConfig | None = None) -> Here:
    """
    Return where a saver is called.

    Raises:
        StoreClosed: the postbox is not open.
        InvalidArgument: there is no postbox, and no handler runs here.

    """
    handled = _named(config) or handled_here()
    own: Database | None = None if handled is None else _file_of(handled)
    db = own if box is None else _plain(box)._db
    if db is None:
        raise InvalidArgument(NO_HANDLER)
    return Here(db, handled, writes_of_call(handled)) if own is db else Here(db)


def here_to_write(box: Postbox | AsyncPostbox | None, config: RunnableConfig) -> Here:
    """Return where a saver is to write; raises InvalidArgument in a handler without its config."""
    found = here(box, config)
    if found.handled is not None and _named(config) is None:
        raise InvalidArgument(BY_INVOKE)
    return found


def handled_here() -> Any:
    """Return the context, or the run, of the handler that runs here; None elsewhere."""
    found = step.context
    if isinstance(found, AsyncContext | AsyncRun):
        return found._plain
    if isinstance(found, Context | Run) and not isinstance(found, BatchContext):
        return found
    return None


def _named(config: RunnableConfig | None) -> Any:
    return None if config is None else config.get("configurable", {}).get(HANDLED)


def _file_of(handled: Any) -> Database | None:
    """Return the file of a handler; None in a trial, which has no engine."""
    return getattr(handled._outbox, "db", None)


def _plain(box: Postbox | AsyncPostbox) -> Postbox:
    return box if isinstance(box, Postbox) else box._plain


def writes_of_call(handled: Any) -> CallWrites:
    """Return what the call of a handler keeps."""
    found = _calls.get(handled)
    if found is None:
        found = _calls.setdefault(handled, CallWrites())
        handled._steps  # noqa: B018 - the end of a call asks contexts that have steps
        handled._at_end(found.commit_rest)
    return found


async def off_loop(
    box: Postbox | AsyncPostbox | None, work: Callable[[], T], config: RunnableConfig | None = None
) -> T:
    """Run *work* on a thread that may touch the file: in a handler on the handler's own."""
    handled = _named(config) or handled_here()
    face = getattr(handled, "_face", None)
    if face is not None:
        found: T = await face._off_loop.call(work)
        return found
    if isinstance(box, AsyncPostbox):
        return await box._off_loop.call(work)
    return await to_thread(work)
