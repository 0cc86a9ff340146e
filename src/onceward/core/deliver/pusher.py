"""Push parcels to one peer until it has everything, and have each answer settled."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from onceward.core.deliver import parcels, peers
from onceward.core.deliver.answer_settler import AnswerSettler
from onceward.core.deliver.busy_peers import BusyPeers
from onceward.core.deliver.delivery_failures import DeliveryFailures
from onceward.core.deliver.hung_pushes import PushesUnderWay
from onceward.core.deliver.parcel_packer import ParcelPacker
from onceward.core.deliver.parcels import InFlight
from onceward.core.deliver.routes import NotMade, Routes
from onceward.core.deliver.transport import Transport
from onceward.core.engine import engine_loop as engine
from onceward.core.engine.deps import RuntimeDeps
from onceward.errors import (
    LeaseLost,
    OncewardError,
    OutOfDescriptors,
    ParcelTooLarge,
    PushFailed,
    Refused,
    StoreClosed,
    Unreachable,
)
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.log import Level, log
from onceward.message.parcel import Answer
from onceward.message.quoting import error_text

SETTLE_WITHIN: Final = 0.05
"""Seconds that an answer waits for a commit that is made anyway."""


class Pusher:
    """Delivers to one peer at a time on the thread that calls it."""

    under_way: PushesUnderWay | None = None
    """Watches the pushes of carriers; None while the engine runs on the callers' threads."""

    def __init__(
        self,
        deps: RuntimeDeps,
        routes: Routes,
        *,
        packer: ParcelPacker,
        settler: AnswerSettler,
        failures: DeliveryFailures,
        busy: BusyPeers,
    ) -> None:
        self._db, self._settings, self._routes = deps.db, deps.settings, routes
        self._packer, self._settler, self._failures = packer, settler, failures
        self._busy, self._stopping = busy, busy.stopping

    def deliver_safely(self, name: str, first: InFlight | None = None) -> None:
        """Deliver to one peer on a carrier; raises nothing."""
        try:
            self.deliver(name, first)
        except StoreClosed as error:
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except Exception:  # noqa: BLE001 - a carrier outlives every error, and it was logged
            self._pause_peer()

    def _pause_peer(self) -> None:
        """Keep the peer busy for a moment: where the file takes no row, none says when to retry."""
        self._stopping.wait(engine.MAX_IDLE_SECONDS)

    def deliver(self, name: str, first: InFlight | None = None) -> int:
        """Push to one peer; an error that is none of a push is told at the peer."""
        try:
            return self.deliver_to_peer(name, first)
        except LeaseLost as error:  # another dispatcher pushes to this peer
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except StoreClosed:
            raise
        except Exception as error:
            level: Level = "warning" if isinstance(error, OncewardError) else "error"
            log.failure(level, "delivery failed", error, agent=self._db.agent, peer=name)
            if not self._told(name, error):
                self._busy.left.add(name)
                raise
        return 0

    def _told(self, name: str, error: Exception) -> bool:
        """Record at the peer why it is left alone for a moment; say whether that was possible."""
        text = error_text(error)
        try:
            self._db.write(
                lambda tx: peers.note_error(
                    tx, name, text, owner=self._packer.owner, due_at=tx.now + _pause()
                )
            )
        except OncewardError:
            return False
        return True

    def deliver_to_peer(self, name: str, packed: InFlight | None = None) -> int:
        """
        Push to one peer until it has everything; return how many parcels arrived.

        Begins with the parcel that the commit of its messages has *packed*, if there is one.
        """
        self._settler.renewed.discard(name)
        count = 0
        try:
            packed = packed or self._db.write(partial(self._packer.first, name=name))
        except NotMade:
            packed = self._make_and_pack(name)
        while packed is not None and packed.parcel is not None:
            following = self._push(packed)
            count += following is not None
            if self._stopping.is_set():
                break
            packed = following
        if packed is not None and packed.parcel is not None:
            with suppress(OncewardError):
                held = packed.lease
                self._db.write(lambda tx: peers.release(tx, held))
        return count

    def _make_and_pack(self, name: str) -> InFlight | None:
        """Make the transport of a peer outside the transaction, then pack its first parcel."""
        rows = self._db.read(peers.URL, (name,))
        with suppress(Unreachable):  # the push meets it again, and tells of it
            self._routes.route(name, rows[0][0] if rows else None)
        return self._db.write(partial(self._packer.first, name=name))

    def _push(self, packed: InFlight) -> InFlight | None:
        """Push one parcel and settle it; return the next one, None where the peer backs off."""
        try:
            transport, url = self._routes.route(packed.lease.name, packed.lease.url)
            if transport.features.network:
                answer = self._timed(transport, url, packed)
            else:
                answer = self._answer(transport, url, packed)
        except LeaseLost:
            raise
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._packer.next(tx, self._failures.refused(tx, packed, refusal))
            )
        except ParcelTooLarge as error:
            limit = error.limit
            return self._db.write(
                lambda tx: self._packer.next(tx, self._failures.too_large(tx, packed, limit))
            )
        except Exception as error:  # noqa: BLE001 - a carrier outlives every error of a transport
            if _is_our_own(error):
                self._wait(packed, error)
            else:
                self.back_off(packed, error)
            return None
        settle = partial(
            self._settler.settle,
            packed=packed,
            answer=answer,
            streams=transport.features.streams,
        )
        try:
            return self._write_answer(packed, settle)
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001 - the transport returned what is no answer
            self.back_off(packed, error)
            return None

    def _timed(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """Call a transport of a network; parcels grow while its way is slow."""
        held = packed.lease
        push = partial(self._answer, transport, url, packed)
        return self._packer.growth.timed(held.name, len(held.parcel or ()), push)

    def _answer(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """
        Call the transport.

        Raises:
            LeaseLost: it took longer than it may and was given up; its answer does not count.

        """
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        if self.under_way is None:
            return transport.deliver(url, packed.parcel)
        self.under_way.begin(packed)
        try:
            return transport.deliver(url, packed.parcel)
        finally:
            if not self.under_way.end():
                msg = f"the push to {packed.lease.name} returned after it was given up"
                raise LeaseLost(msg)

    def _write_answer(
        self, packed: InFlight, settle: Callable[[StoreTransaction], InFlight | None]
    ) -> InFlight | None:
        """
        Commit what an answer changes, with the next commit of this process where none hurries.

        The lease stays in the file meanwhile; after a crash the same parcel is pushed again.
        """
        if self.under_way is None or self._stopping.is_set() or len(self._busy.names) > 1:
            return self._db.write(settle)
        return self._db.write_with_next(
            settle,
            SETTLE_WITHIN,
            unless=partial(parcels.more_waits, self._db.read, packed.lease, packed.paid_upto),
        )

    def _wait(self, packed: InFlight, error: Exception) -> None:
        text = error_text(error)
        self._db.write(lambda tx: self._failures.wait(tx, packed, text, _pause()))

    def back_off(self, packed: InFlight, error: Exception) -> None:
        """
        Leave the peer alone for a while, because a push to it failed.

        An error of the transport itself costs no message an attempt.
        """
        text = error_text(error)
        unreachable = not isinstance(error, PushFailed)
        if not isinstance(error, OncewardError):
            peer = packed.lease.name
            log.failure("error", "the transport failed", error, agent=self._db.agent, peer=peer)
        self._db.write(
            lambda tx: self._failures.back_off(tx, packed, text, unreachable=unreachable)
        )


def _pause() -> Millis:
    """Return how long a peer is left alone after an error of our own side."""
    return round(1000 * engine.MAX_IDLE_SECONDS)


def _is_our_own(error: Exception) -> bool:
    """Return whether a push failed for lack of descriptors or memory in this process."""
    return isinstance(error, OutOfDescriptors | MemoryError) or (
        isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    )
