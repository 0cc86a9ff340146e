"""Work that shares a transaction: all of it as one, or, where that fails, each piece in a savepoint of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceward.db.transaction import StoreTransaction
from onceward.db.write_queue import INTERRUPTS, WriteRequest

TranslateError = Callable[[BaseException], BaseException]
"""What a foreign error means."""
DeferInterrupt = Callable[[BaseException | None], None]
"""Keeps an interrupt of this thread until the end of its turn: it is not meant for the neighbours."""


def run_batch(
    batch: list[WriteRequest[Any]],
    tx: StoreTransaction,
    mapped: TranslateError,
    postpone: DeferInterrupt,
) -> BaseException | None:
    """Do the work of a batch; return the last error. A job that failed keeps its own, and its writes are undone."""
    if len(batch) == 1:
        batch[0].attempt(tx, mapped, nested=False)
        return batch[0].error
    error = _as_one(batch, tx, mapped, postpone)
    if error is None:
        return None
    tx.rollback_savepoint()
    for job in batch:
        if not tx.alive:
            break
        if job.error is None:
            run_isolated(job, tx, mapped, postpone)
            error = job.error
    return error


def _as_one(
    batch: list[WriteRequest[Any]],
    tx: StoreTransaction,
    mapped: TranslateError,
    postpone: DeferInterrupt,
) -> BaseException | None:
    """Do all of it in one savepoint, rows gathered; return what went wrong, whosever it was, None where nothing did."""
    tx.savepoint()
    try:
        with tx.batch_inserts():
            for job in batch:
                job.attempt(tx, mapped, nested=False)
                if job.error is not None:
                    tx.batched_inserts.clear()
                    return _attribute_error(job, batch[0], postpone)
        tx.release_savepoint()
    except Exception as error:  # noqa: BLE001 - alone, each will tell whose it was
        return mapped(error)
    return None


def _attribute_error(
    job: WriteRequest[Any], first: WriteRequest[Any], postpone: DeferInterrupt
) -> BaseException | None:
    """Return the error that *job* met. Alone it will meet its own; only who was interrupted in work of his own will not be asked again."""
    error = job.error
    if job is not first or not isinstance(error, INTERRUPTS):
        postpone(error)
        job.error = None
    return error


def run_isolated(
    job: WriteRequest[Any], tx: StoreTransaction, mapped: TranslateError, postpone: DeferInterrupt
) -> None:
    """Do a neighbour's work in a savepoint of its own; an interrupt meanwhile is meant for this thread, not for the neighbour."""
    job.attempt(tx, mapped, nested=True)
    if isinstance(job.error, INTERRUPTS):
        postpone(job.error)
        job.error = None
        job.attempt(tx, mapped, nested=True)
