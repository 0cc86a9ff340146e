"""
Poll another home for the parcels of all agents of this process, as one listener of their postboxes.

One question of the process is held. The agents take their parcels on threads; an answer that is
ready while the question is held goes in a question of its own, which is not held.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Condition, Event, Thread
from typing import Final

from onceward.core.deliver.transport import Accept, TransportContext
from onceward.core.run.shared import Shared
from onceward.errors import InvalidParcel
from onceward.file import forks, known_homes
from onceward.message import wire
from onceward.message.log import Level, log
from onceward.message.parcel import Parcel
from onceward.message.wire import Notice, encode_notice
from onceward.transports.network.home_desk import (
    Answers,
    Question,
    decode_parcels,
    encode_question,
)
from onceward.transports.network.homes import OF_HOME
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_telling import end_telling, tell_all
from onceward.transports.network.peer_busy import PeerBusy
from onceward.transports.network.poll_answers import HOLD, PAUSES, answered, not_accepted

ACCEPTING: Final = 8
"""Maximum parcels that the agents of a process accept at once."""
TOGETHER: Final = 0.05
"""Seconds for which an answer waits for the others of its parcels, to travel with them."""
TRIES: Final = 20
Pair = tuple[str, str]


class HomePollListener:
    """
    Poll the home at *url* for parcels; give it to each postbox of a home as a listener.

    For a home that no other can call: the other one adds it with the url ``poll:``. One question
    of this process is held, however many agents it has.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._lock = forks.new_lock()
        self._polling: dict[Path, Shared[_Polling]] = {}

    def __call__(self, context: TransportContext) -> HomeAsking:
        """Return the listener of one postbox."""
        with self._lock:
            start = partial(_Polling, self._url, context)
            shared = self._polling.setdefault(context.folder, Shared(start, _Polling.close))
        return HomeAsking(shared)


class HomeAsking:
    """The listener of one postbox among those that share a question."""

    def __init__(self, shared: Shared[_Polling]) -> None:
        self._shared = shared
        self._polling: _Polling | None = None
        self._names: list[str] = []

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for *name* to *accept*."""
        if self._polling is None:
            self._polling = self._shared.enter()
        self._names.append(name)
        self._polling.add(name, accept)

    def close(self) -> None:
        """Take no more parcels; wait for running calls. Safe to call twice."""
        polling, self._polling = self._polling, None
        if polling is None:
            return
        while self._names:
            polling.remove(self._names.pop())
        self._shared.leave()


class _Polling:
    """The question of this process to one home, and the parcels that are being accepted."""

    def __init__(self, url: str, context: TransportContext) -> None:
        self._url, self._context, self._process = url, context, token_hex(8)
        self._http = HttpTransport(context)
        self._http.check(url)
        self._changed = Condition(forks.new_lock())
        self._agents: dict[str, Accept] = {}
        self._pending: set[Pair] = set()
        self._ready: list[tuple[Pair, bytes]] = []
        self._held, self._stopping = False, Event()
        self._pool = ThreadPoolExecutor(ACCEPTING, "onceward-poll-in")
        self._thread = Thread(target=self._ask_on, name="onceward-poll-home", daemon=True)
        self._thread.start()

    def add(self, name: str, accept: Accept) -> None:
        """Take parcels for an agent more; the held question learns of it."""
        with self._changed:
            self._agents[name] = accept
            self._changed.notify_all()
        self._submit(self._tell)
        tell_all(self._context, HttpTransport)

    def remove(self, name: str) -> None:
        """Take none for an agent; wait for those that it accepts."""
        with self._changed:
            self._agents.pop(name, None)
            self._changed.wait_for(lambda: all(name != to for _, to in self._pending))

    def close(self) -> None:
        """Stop polling; wait for running calls."""
        self._stopping.set()
        end_telling(self._context)
        with self._changed:
            self._changed.notify_all()
        self._http.close()
        self._pool.shutdown()
        self._thread.join()

    # -- asking -----------------------------------------------------------------------------

    def _ask_on(self) -> None:
        pause, level = PAUSES[0], "warning"  # type: float, Level
        while not self._stopping.is_set():
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._agents or self._stopping.is_set())
                    self._changed.wait_for(lambda: not self._pending, TOGETHER)
                if not self._stopping.is_set():
                    self._ask(held=True)
                pause, level = PAUSES[0], "warning"
            except PeerBusy as error:
                self._stopping.wait(error.after)
            except Exception as error:  # noqa: BLE001 - the thread survives every error
                self._note(level, error)
                level = "debug"
                self._stopping.wait(pause)
                pause = min(2 * pause, PAUSES[1])

    def _note(self, level: Level, error: Exception) -> None:
        if not self._stopping.is_set():
            log.failure(level, "polling failed", error, agent=OF_HOME, url=self._url)

    def _ask(self, *, held: bool) -> None:
        """Ask once, with the answers that are ready, and give the parcels to the agents."""
        hold = min(HOLD, self._context.settings.deliver_timeout / 2) if held else 0.0
        with self._changed:
            answers, self._ready = self._ready, []
            question = Question(
                process=self._process,
                hold=round(1000 * hold),
                agents=sorted(self._agents),
                pending=sorted(self._pending),
            )
            self._held = held
        try:
            self._take(self._asked(question, answers))
        except BaseException:
            with self._changed:
                self._ready = [*answers, *self._ready]
            raise
        finally:
            if held:
                with self._changed:
                    self._held = False

    def _asked(self, question: Question, answers: Answers) -> list[bytes]:
        at = self._context.clock.now()
        notice = Notice(kind="collect", sender=OF_HOME, recipient=OF_HOME, at=at)
        body = encode_notice(notice) + b"\n" + encode_question(question, answers)
        return decode_parcels(self._http.collect_of_home(self._url, body))

    def _tell(self) -> None:
        """Ask without being held, to tell answers and agents while a question is held."""
        for _ in range(TRIES):
            try:
                self._ask(held=False)
            except PeerBusy as error:  # another question of ours is being read
                self._stopping.wait(error.after)
            except Exception as error:  # noqa: BLE001 - the next question tells them
                self._note("debug", error)
                return
            else:
                return

    # -- accepting --------------------------------------------------------------------------

    def _take(self, texts: list[bytes]) -> None:
        for text in texts:
            try:
                parcel = wire.decode_parcel(text)
            except InvalidParcel as error:
                log.failure("warning", "parcel not read", error, agent=OF_HOME, url=self._url)
                continue
            key = parcel.sender, parcel.recipient
            with self._changed:
                if key in self._pending:
                    continue
                self._pending.add(key)
            self._submit(partial(self._accept, parcel))

    def _submit(self, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # it is being closed
            self._pool.submit(work)

    def _accept(self, parcel: Parcel) -> None:
        """Pass a parcel to its agent, and leave its answer for a question."""
        key = parcel.sender, parcel.recipient
        try:
            text = self._answer(parcel)
        except BaseException as error:  # noqa: BLE001 - told as not accepted
            log.failure("warning", "parcel not accepted", error, agent=key[1], peer=key[0])
            text = not_accepted("nothing", parcel, type(error).__name__)
        with self._changed:
            self._pending.discard(key)
            self._ready.append((key, text))
            self._changed.notify_all()
            alone = self._held
        if alone:
            self._tell()

    def _answer(self, parcel: Parcel) -> bytes:
        if why := self._why_not(parcel.sender):
            log.warning("parcel refused", agent=parcel.recipient, peer=parcel.sender, why=why)
            return not_accepted("nothing", parcel, "that home may not send as this agent")
        with self._changed:
            accept = self._agents.get(parcel.recipient)
        if accept is None:
            return not_accepted("nothing", parcel, "the agent is no longer open there")
        return answered(accept, parcel)

    def _why_not(self, sender: str) -> str:
        """Return why the polled home may not send as *sender*; ask for its agents once."""
        if self._http.has_key(sender):
            return "key: it has one of its own"
        if self._may_not_use(sender):
            self._http.telling.tell(self._url)
        return self._may_not_use(sender)

    def _may_not_use(self, sender: str) -> str:
        homes = self._http.homes
        home = known_homes.at_url(homes.directory.read, self._url)
        return "key: no home is known there" if home is None else homes.may_use(home, sender)
