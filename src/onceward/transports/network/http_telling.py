"""Tell our agents to other homes over HTTP, and store those that they answer with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final, Protocol

from onceward.core.deliver.transport import TransportContext
from onceward.errors import InvalidParcel, OncewardError, Unreachable
from onceward.file import forks, known_homes
from onceward.file.directory import has_home_key
from onceward.message.clock import Millis, monotonic
from onceward.message.log import log
from onceward.transports.network.homes import OF_HOME, HomeKeys

PAUSE: Final = 0.5
"""Seconds between two exchanges of this process with a home that refuses requests."""
ROUND: Final = 1.0
"""Seconds between two rounds of this process to all known homes of a home."""
CLOSE_WITHIN: Final = 5.0
"""Seconds that closing an agent waits for a round that it ended."""
AT_ONCE: Final = 8
"""Maximum homes that are told at the same time."""


@dataclass(slots=True, eq=False)
class _Turn:
    """Lets one thread of the process tell a home; others wait for it and take its outcome."""

    lock: Any = field(default_factory=forks.new_lock)
    at: float = -PAUSE
    done: bool = False


@dataclass(slots=True, eq=False)
class _Rounds:
    """The rounds of this process to the homes that one home knows."""

    changed: Condition = field(default_factory=lambda: Condition(forks.new_lock()))
    agents: set[str] = field(default_factory=set)
    """The open agents that asked for a round; without one the rounds end."""
    wanted: int = 0
    running: bool = False
    transport: Tells | None = None


_turns: Final = dict[tuple[Path, str], _Turn]()
_rounds: Final = dict[Path, _Rounds]()
forks.in_child(_turns.clear)
forks.in_child(_rounds.clear)


class Telling:
    """Tells our agents to the homes at urls; *ask* exchanges lists of agents with one."""

    def __init__(self, homes: HomeKeys, ask: Callable[[str, bytes], tuple[bytes, Millis]]) -> None:
        self._homes, self._ask = homes, ask

    def tell(self, url: str) -> bool:
        """Exchange agents with the home at *url*, unless that was just done; return if it was."""
        turn = _turns.setdefault((self._homes.folder, url), _Turn())
        with turn.lock:
            if monotonic() - turn.at >= PAUSE:
                turn.done = self._told(url)
                turn.at = monotonic()
            return turn.done

    def _told(self, url: str) -> bool:
        try:
            self.exchange(url)
        except (OncewardError, OSError) as error:
            log.failure("debug", "agents not told", error, agent=OF_HOME, url=url)
            return False
        return True

    def exchange(self, url: str) -> Millis:
        """
        Tell our agents to the home at *url*, store its own, and return how far its clock is ahead.

        Raises:
            Unreachable: it is not known here, or its answer is not signed; says what to check.

        """
        body, ahead = self._ask(url, self._homes.own_agents())
        home = known_homes.at_url(self._homes.directory.read, url)  # as it is after a rotation
        try:
            if home is None or not self._homes.told(home, body):
                raise Unreachable(f"no home is known at {url}: onceward homes add {url}")
        except InvalidParcel as error:
            raise Unreachable(f"the answer of the home {home and home.name}: {error}") from error
        return ahead


class Tells(Protocol):
    """A transport over which homes tell their agents."""

    homes: HomeKeys
    telling: Telling

    def close(self) -> None:
        """Close its connections."""
        ...


def tell_all(context: TransportContext, make: Callable[[TransportContext], Tells]) -> None:
    """
    Exchange agents with all known homes that have an address, on a thread of its own.

    Do nothing for a home without a key. Calls during a round are followed by one round more. The
    caller calls ``end_telling`` when its agent closes.
    """
    if not has_home_key(context.folder):
        return
    rounds = _rounds.setdefault(context.folder, _Rounds())
    with rounds.changed:
        rounds.agents.add(context.agent)
        rounds.wanted += 1
        if rounds.running:
            return
        rounds.running = True
    telling = Thread(
        target=_tell_on, args=(rounds, context, make), name="onceward-tell-homes", daemon=True
    )
    try:
        telling.start()
    except RuntimeError:  # the system starts no thread: the next call tries again
        rounds.running = False


def end_telling(context: TransportContext) -> None:
    """End the rounds with the last agent that asked for one; wait until none runs."""
    rounds = _rounds.get(context.folder)
    if rounds is None:
        return
    with rounds.changed:
        rounds.agents.discard(context.agent)
        if rounds.agents or not rounds.running:
            return
        transport = rounds.transport
        rounds.changed.notify_all()
    if transport is not None:
        transport.close()
    with rounds.changed:
        rounds.changed.wait_for(lambda: rounds.agents or not rounds.running, CLOSE_WITHIN)


def _tell_on(
    rounds: _Rounds, context: TransportContext, make: Callable[[TransportContext], Tells]
) -> None:
    while True:
        with rounds.changed:
            wanted = rounds.wanted
        _round(rounds, context, make)
        with rounds.changed:
            rounds.changed.wait_for(lambda: not rounds.agents, ROUND)
            if rounds.wanted == wanted or not rounds.agents:
                rounds.running = False
                rounds.changed.notify_all()
                return


def _round(
    rounds: _Rounds, context: TransportContext, make: Callable[[TransportContext], Tells]
) -> None:
    try:
        transport = make(context)
        with rounds.changed:
            rounds.transport = transport
        try:
            homes = known_homes.all_homes(transport.homes.directory.read)
            urls = [each.url for each in homes if each.url.startswith("http")]
            if urls and rounds.agents:
                with ThreadPoolExecutor(AT_ONCE, "onceward-tell-homes") as pool:
                    list(pool.map(transport.telling.tell, urls))
        finally:
            with rounds.changed:
                rounds.transport = None
            transport.close()
    except Exception as error:  # noqa: BLE001 - a thread of our own
        log.failure("debug", "agents not told", error, agent=context.agent)
