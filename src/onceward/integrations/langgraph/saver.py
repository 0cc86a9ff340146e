"""Checkpoint LangGraph's graphs in an agent's own file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from onceward import AsyncPostbox, Postbox
from onceward.errors import InvalidArgument
from onceward.file.transaction import StoreTransaction
from onceward.integrations.langgraph import stored
from onceward.integrations.langgraph.calls import Here, here, here_to_write, off_loop
from onceward.integrations.langgraph.stored import (
    TABLES,
    CheckpointPlace,
    CheckpointRow,
    TaskWrite,
    Wanted,
    WriteRow,
)

P = ParamSpec("P")
T = TypeVar("T")
STRATEGIES: Final = ("keep_latest", "delete")


def awaitable(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return *method* as a coroutine function that runs it off the loop."""

    @wraps(method)
    async def call(self: OncewardSaver, /, *args: P.args, **options: P.kwargs) -> T:
        first = args[0] if args else options.get("config")
        config: Any = first if isinstance(first, dict) else None  # it names the handler
        return await off_loop(self.box, partial(method, self, *args, **options), config)

    return call


class OncewardSaver(BaseCheckpointSaver[int]):
    """
    Saves the checkpoints of LangGraph's graphs in the file of an open postbox.

    In a handler of that file the last checkpoint, the messages and the processed mark are one
    commit; tasks that have finished before are committed by themselves, under the lease of the
    message, so that a call after a kill goes on after them. Elsewhere each call commits.
    Without a postbox it is the file of the handler that runs the graph.
    """

    def __init__(
        self, box: Postbox | AsyncPostbox | None = None, *, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self.box = box
        """The postbox whose file keeps the checkpoints; None for that of the handler."""

    # -- reading ----------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with the writes of its tasks, the newest one without an id."""
        at, named = here(self.box, config), config["configurable"]
        asked = (str(named["thread_id"]), named.get("checkpoint_ns", ""), get_checkpoint_id(config))
        row = None if at.call is None else at.call.newest(*asked)
        if TABLES.exist(at.db):
            there = stored.find(at.db.read, *asked)
            if there is not None and at.call is not None:
                at.call.found(there.place)
            row = max(filter(None, (row, there)), key=lambda each: each.id, default=None)
        return None if row is None else self._tuple(at, row)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return checkpoints, the newest first, whose metadata has the values of *filter*."""
        at, left = here(self.box, config), limit
        for row in _rows(at, _wanted(config, before)):
            if left is not None and left <= 0:
                return
            metadata = json.loads(row.metadata)
            if all(metadata.get(name) == value for name, value in (filter or {}).items()):
                left = None if left is None else left - 1
                yield self._tuple(at, row)

    def _tuple(self, at: Here, row: CheckpointRow) -> CheckpointTuple:
        writes = stored.writes_of(at.db.ask, row.place) if TABLES.exist(at.db) else []
        if at.call is not None:
            writes = at.call.over(row.place, writes)
        writes.sort(key=lambda each: writes_sort_key(each.path, each.task, each.idx))
        return CheckpointTuple(
            config=_config(row.place),
            checkpoint=self.serde.loads_typed((row.media, row.checkpoint)),
            metadata=json.loads(row.metadata),
            parent_config=(
                None if row.parent is None else _config(row.place._replace(id=row.parent))
            ),
            pending_writes=[
                (each.task, each.channel, self.serde.loads_typed((each.media, each.value)))
                for each in writes
            ],
        )

    # -- writing ----------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - the checkpoint holds all values
    ) -> RunnableConfig:
        """Store a checkpoint; in a handler, at the latest with the processed mark."""
        at, row = here_to_write(self.box, config), self._row(config, checkpoint, metadata)
        if at.call is None:
            at.db.write(partial(stored.store, checkpoints=[row], writes=()))
        else:
            at.call.add(row)
            if at.call.has_finished_task:
                at.call.commit(at.handled)
        return _config(row.place)

    def _row(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> CheckpointRow:
        named = config["configurable"]
        kept = get_serializable_checkpoint_metadata(config, metadata)
        run = kept.get("run_id")
        media, data = self.serde.dumps_typed(checkpoint)
        return CheckpointRow(
            thread=str(named["thread_id"]),
            namespace=named.get("checkpoint_ns", ""),
            id=checkpoint["id"],
            parent=named.get("checkpoint_id"),
            run=None if run is None else str(run),
            metadata=json.dumps(kept, ensure_ascii=False),
            media=media,
            checkpoint=data,
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written after a checkpoint."""
        named = config["configurable"]
        place = CheckpointPlace(
            str(named["thread_id"]), named.get("checkpoint_ns", ""), named["checkpoint_id"]
        )
        special = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        rows = [
            TaskWrite(
                WriteRow(
                    *place,
                    task_id,
                    WRITES_IDX_MAP.get(channel, idx),
                    task_path,
                    channel,
                    *self.serde.dumps_typed(value),
                ),
                special,
            )
            for idx, (channel, value) in enumerate(writes)
        ]
        at = here_to_write(self.box, config)
        if at.call is None:
            at.db.write(partial(stored.store, checkpoints=(), writes=rows))
        else:
            at.call.add_writes(rows)
            if at.call.has_finished_task:
                at.call.commit(at.handled)

    # -- deleting and copying ---------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._write(partial(stored.delete_thread, thread=str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs; in a handler a run has the id of its message."""
        self._write(partial(stored.delete_runs, runs=[str(each) for each in run_ids]))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, with all its checkpoints."""
        self._write(partial(stored.copy_thread, of=str(source_thread_id), to=str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """
        Delete the old checkpoints of threads, or all of them with ``strategy="delete"``.

        Where the newest one has channels of deltas, its ancestors back to their last snapshot
        are kept, too.
        """
        if strategy not in STRATEGIES:
            msg = f"strategy {strategy!r} is unknown: there are {', '.join(STRATEGIES)}"
            raise InvalidArgument(msg)
        verb = stored.keep_latest if strategy == "keep_latest" else stored.delete_thread
        for each in thread_ids:
            self._write(partial(verb, thread=str(each)))

    def _write(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work*; in a handler with the processed mark."""
        at = here(self.box)
        if TABLES.exist(at.db):
            if at.handled is None:
                at.db.write(work)
            else:
                at.handled._at_end(work)

    # -- coroutines -------------------------------------------------------------------------

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Return checkpoints, the newest first; see ``list``."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await off_loop(self.box, partial(next, found, None), config)) is not None:
            yield each

    aget_tuple = awaitable(get_tuple)
    aput = awaitable(put)
    aput_writes = awaitable(put_writes)
    adelete_thread = awaitable(delete_thread)
    adelete_for_runs = awaitable(delete_for_runs)
    acopy_thread = awaitable(copy_thread)
    aprune = awaitable(prune)


def _rows(at: Here, wanted: Wanted) -> Iterator[CheckpointRow]:
    """Return the checkpoints of the file, and those that the call of a handler keeps."""
    there = stored.pages(at.db, wanted) if TABLES.exist(at.db) else iter(())
    kept = [] if at.call is None else [row for row in at.call.checkpoints() if wanted.takes(row)]
    if not kept:
        return there
    places = {row.place for row in kept}
    rows = [*kept, *(row for row in there if row.place not in places)]
    return iter(sorted(rows, key=lambda row: row.id, reverse=True))


def _config(place: CheckpointPlace) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": place.thread,
            "checkpoint_ns": place.namespace,
            "checkpoint_id": place.id,
        }
    }


def _wanted(config: RunnableConfig | None, before: RunnableConfig | None) -> Wanted:
    named = {} if config is None else config["configurable"]
    thread = named.get("thread_id")
    return Wanted(
        thread=None if thread is None else str(thread),
        namespace=named.get("checkpoint_ns"),
        id=named.get("checkpoint_id"),
        before=None if before is None else get_checkpoint_id(before),
    )
