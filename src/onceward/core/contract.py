"""
Define what a feature gives, as data: ``FEATURE`` in the ``__init__`` of its folder.

Each field has users in several features, and none is about a single one. A postbox composes the
fields of all features of its list; the core gets what belongs to its stages. A function that needs
the feature's modules is named ``Late``, so that they are imported when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from onceward.core.accept.policy import Arrives
from onceward.core.deliver.dispatcher import DueWork
from onceward.core.maintenance import Upkeep
from onceward.file.transaction import StoreTransaction

if TYPE_CHECKING:
    from onceward.core.handle.bridge import FileBridge
    from onceward.core.handle.call import CallHome, HandlerDeps
    from onceward.core.handle.invoke import Loop
    from onceward.core.handle.readers import InboxConsumer
    from onceward.core.handle.signatures import Handlers
    from onceward.core.handle.worker import CallGuard, Gates
    from onceward.core.send.block import BlockOpener
    from onceward.file.directory import DirectoryCache, DirectoryHandle, OpenAgentFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Late:
    """A function of a feature by name, ``module.function``; imported with its first call."""

    folder: str
    name: str

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function."""
        return self.load()(*args, **named)

    def load(self) -> Callable[..., Any]:
        """Import its module; return the function."""
        return _loaded(self)


@cache
def _loaded(late: Late) -> Callable[..., Any]:
    module, _, function = late.name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(f"{late.folder}.{module}"), function)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One opening of an agent's file: what a feature gets of it, and may add to it."""

    deps: HandlerDeps
    agent: Handlers | None
    """The agent whose handlers it runs, if it has one."""
    engines: bool
    """Whether engines will start."""
    home: DirectoryHandle
    directory: DirectoryCache
    files: OpenAgentFiles
    """Opens the files of other agents of the home."""
    session: BlockOpener
    """The default session."""
    consumer: InboxConsumer
    started: Callable[[], bool]
    """Whether the file's dispatcher runs in the background, where its work must be brief."""
    alone: list[Callable[[], None]] = field(default_factory=list)
    """Called if no other process has the file open, and before another one can open it."""
    joined: list[Callable[[], None]] = field(default_factory=list)
    """Called once the file's owners know of this opening."""
    closing: ExitStack = field(default_factory=ExitStack)
    """Closed when the opening ends."""
    offers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that a feature offers to others, by name; another feature may be absent."""
    _made: dict[Callable[[Opening], Any], Any] = field(default_factory=dict)

    def once(self, make: Callable[[Opening], T]) -> T:
        """Return what *make* returns for this opening; the first result is kept."""
        make = make.load() if isinstance(make, Late) else make
        if make not in self._made:
            self._made.setdefault(make, make(self))
        made: T = self._made[make]
        return made


class Part(NamedTuple):
    """An attribute of a postbox."""

    make: Callable[[Opening], Any]
    """Makes it, on first use."""
    face: Callable[[Any, FileBridge], Any]
    """Makes its async version, from the attribute."""


class MakeGates(Protocol):
    """Returns, for an agent and its number of workers, what makes their admission objects."""

    def __call__(
        self, agent: Handlers, workers: int | None, free: Callable[[bool], object]
    ) -> Gates:
        """Return it; *free* is called when more may be claimed, with whether by this postbox."""


class Engine(Protocol):
    """Does due work, on its own threads or on the caller's."""

    def start(self) -> None:
        """Start working in the background."""

    def run_due(self) -> int:
        """Do due work on this thread; return how many messages moved."""

    def stop(self, timeout: float) -> None:
        """Start no more work; wait up to *timeout* seconds for running work."""

    def cancel(self) -> bool:
        """Cancel work that still runs after ``stop``; return whether there is such work."""

    def join(self, timeout: float) -> None:
        """Wait after ``stop`` up to *timeout* seconds for running work."""


class Claims(NamedTuple):
    """The part of a feature in the claims of messages for the handlers of an agent."""

    gates: MakeGates | None = None
    """Makes the admission of messages to its workers."""
    engines: Callable[[HandlerDeps, Handlers, Loop], Sequence[Engine]] | None = None
    """Makes the engines that handle messages besides its workers."""


class Verbs(NamedTuple):
    """Methods of contexts, by which handlers use a feature: classes that contexts inherit."""

    plain: Late
    awaited: Late
    """The methods of the contexts of coroutines."""


class Calls(NamedTuple):
    """The part of a feature in the calls of an agent's handlers."""

    guard: Callable[[Handlers], CallGuard | None] | None = None
    """Makes the check in the file that decides whether a handler is called."""
    parts: Mapping[str, Callable[[HandlerDeps, CallHome], Any]] = {}
    """Make parts of a call, by name, when its handler first uses them."""
    verbs: Verbs | None = None
    """Its methods of contexts."""


class FileRule(NamedTuple):
    """A condition on the rows of a file, and the statement that finds the offenders."""

    text: str
    offenders: str
    """SQL: one column that names each offender; no row if the rule holds."""


Change = Callable[[StoreTransaction, dict[str, Any]], object]
"""Changes the row of ``key``; returns whether it was still as it was found."""


class LeaseTable(NamedTuple):
    """Leases that a repair shortens if they last longer than any should."""

    what: str
    find: str
    """SQL: key, sequence, name, owner and end of each lease that ends after :now."""
    change: Change
    """Ends a lease at ``until``."""


class PositionTable(NamedTuple):
    """Positions that a repair moves back if they are past the last message."""

    what: str
    said: str
    """The name of a position, with a place for that of the row."""
    where: str
    """Says before which message it is set."""
    find: str
    """SQL: key, name, position and the repaired one of each that is past :newest."""
    change: Change
    """Sets a position from ``from`` to ``to``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The parts of one feature, which a postbox composes."""

    name: str
    """Its folder in ``onceward.features``."""
    arrives: Arrives | None = None
    """Its work for messages that arrive."""
    claims: Claims | None = None
    """Its part in the claims of messages for handlers."""
    calls: Calls | None = None
    """Its part in the calls of handlers."""
    due: DueWork | None = None
    """Its work at dates that it stores in the file."""
    upkeep: Upkeep | None = None
    """Its work in each round of maintenance."""
    opens: Callable[[Opening], None] | None = None
    """Prepares a file that is opened, before its engines start."""
    rules: Callable[[], Mapping[str, FileRule]] | None = None
    """Returns what must hold in a file, by the name of each rule."""
    repairs: Callable[[], Sequence[LeaseTable | PositionTable]] | None = None
    """Returns the leases and positions that no process repairs automatically."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """Attributes of a postbox, by name."""
