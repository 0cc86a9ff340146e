"""Find the transport that reaches a recipient; make it when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, NoReturn

from onceward.api.features import ARRIVES, judging
from onceward.core.accept.accept import Receiver
from onceward.core.deliver.delivery import Deliveries
from onceward.core.deliver.transport import (
    ChecksUrls,
    Elsewhere,
    Features,
    Listener,
    MakeListener,
    MakeTransport,
    NotMade,
    ServedHere,
    Transport,
    TransportContext,
)
from onceward.core.rows import peers
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.send.compose import Known
from onceward.errors import (
    AmbiguousRecipient,
    ForeignHandle,
    InvalidArgument,
    StoreUnusable,
    Unreachable,
)
from onceward.file import file_checks, foreign_library, forks, open_files
from onceward.file.database import Database
from onceward.file.directory import DirectoryHandle, has_home_key
from onceward.file.notify import Owed
from onceward.hooks import Hooks
from onceward.message.clock import monotonic
from onceward.message.error_text import Hint, error_text
from onceward.message.log import log
from onceward.message.names import AGENT, POLL, quoted
from onceward.message.parcel import Answer, Parcel
from onceward.message.settings import Settings
from onceward.transports.file import FileTransport, Opened
from onceward.transports.memory import MemoryTransport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "onceward.transports"
POLLED: Final = 30.0
URLS_MAX: Final = 10_000
"""Maximum number of cached urls of files beside ours."""
BUILT_IN: Final[dict[str, str]] = {
    "http": "onceward.transports.network.http:HttpTransport",
    "https": "onceward.transports.network.http:HttpTransport",
    "poll": "onceward.transports.network.poll:PollTransport",
    "webhook": "onceward.transports.network.webhook:WebhookTransport",
    "nats": "onceward.transports.network.nats:NatsTransport",
}
"""By scheme: module and factory of our transports that need an extra."""


@cache
def _installed() -> dict[str, EntryPoint]:
    """Return where the factory of each installed scheme is; looked up once per process."""
    from importlib import metadata  # noqa: PLC0415 - a twentieth of the time of importing

    ours = {name: metadata.EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    return ours | {point.name: point for point in metadata.entry_points(group=GROUP)}


class TransportRouter:
    """
    The transports of one postbox and the peers that they reach.

    A peer is reached at its registered url, else by the file of its name in our own folder.
    *transports* are given by scheme, as instances or factories; an instance also serves the schemes
    that it names. Other packages add factories by the entry point group ``onceward.transports``.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        transports: Mapping[str, Transport | MakeTransport] | None,
        vfs: str | None,
    ) -> None:
        self._db, self._settings, self._vfs = db, settings, vfs
        self._home = DirectoryHandle(db, settings)
        self._asked_homes = False
        self._urls: dict[str, str] = {}
        """By name: the url of a file that was found beside ours."""
        self.context = TransportContext(
            agent=db.agent,
            folder=db.path.parent,
            settings=settings,
            clock=db.clock,
            heard=self._heard,
        )
        self._placed: dict[str, ServedHere] = {}
        """By scheme: the transports whose peers some processes of the home reach."""
        self._transports: dict[str, Transport] = {}
        self._factories: dict[str, MakeTransport] = {}
        self._polled: dict[str, float] = {}
        """Agents of homes that poll another process, and until when this is not looked up again."""
        self._failed: dict[str, str] = {}
        """By scheme: why the last try to make its transport failed."""
        self._find: Callable[[str], str | None] = lambda _: None
        """Finds the url of a name that has no file, and no registered url."""
        self._making: dict[str, Any] = {}
        """By scheme: lock that is held while its transport is made, which may hang."""
        for scheme, given in (transports or {}).items():
            if isinstance(given, Transport) and not isinstance(given, type):
                self._transports[scheme] = given
            elif not callable(given):
                msg = f"transports: {quoted(given)} for {scheme} must be a transport, or make one"
                raise InvalidArgument(msg)
            else:
                self._factories[scheme] = given
        if "file" not in self._factories:
            patience = settings.deliver_timeout / 2  # the file gets the other half
            made = FileTransport(self._open_file, vfs=vfs or "", patience=patience)
            self._transports.setdefault("file", made)
        if "memory" not in self._factories:
            self._transports.setdefault("memory", MemoryTransport())
        for given in [*self._transports.values()]:
            self._add_schemes(given)

    def _add_schemes(self, made: Transport) -> None:
        if isinstance(made, ServedHere):  # before another thread finds the transport
            self._placed.update(dict.fromkeys(made.features.schemes, made))
        for scheme in made.features.schemes - self._factories.keys():
            self._transports.setdefault(scheme, made)

    def extend(self, offers: Mapping[str, Callable[..., Any]]) -> None:
        """Use what features offer: names that they find, and the transport to them."""
        self._find = offers.get("find_peer", self._find)
        if "pool_transport" in offers:
            self._factories.setdefault("pool", offers["pool_transport"])

    def _heard(self, name: str) -> None:
        """End the backoff of a peer that is back."""
        if peers.is_away(self._db.read, name):
            self._db.write(lambda tx: peers.reset_breaker(tx, name))
            self._db.notifier.notify("out")

    def elsewhere(self) -> list[str]:
        """Return the schemes whose peers other processes of the home reach now, and :peers."""
        if not self._placed:
            return []
        found = [scheme for scheme, each in self._placed.items() if not each.here()]
        if self._polled and "poll" in found:
            now = monotonic()
            found += [f":{name}" for name, until in self._polled.items() if until > now]
        return found

    def left(self, name: str) -> Path | None:
        """Return the file of a peer that another library uses in this process; else None."""
        url = peers.url_of(self._db.read, name) or self._urls.get(name) or self._beside(name) or ""
        return _left(url)

    def collect(self, deps: RuntimeDeps, owed: Owed, stopping: Event) -> int:
        """
        Deliver to our agent what another one has for it, from that one's file.

        It is the delivery of the other agent, by its leases and parcels, from a process that may
        open both files. Its rules for weaker receipts are the default ones. The note stays if that
        fails; return the number of parcels.
        """
        wanted = Settings._inherit(
            busy_timeout=min(self._settings.busy_timeout, self._settings.deliver_timeout)
        )
        try:
            db = Database.open(
                owed.path, agent=owed.agent, settings=wanted, vfs=self._vfs, mode="deliver"
            )
        except StoreUnusable as error:
            if not isinstance(error, ForeignHandle):
                owed.done()
            raise
        try:
            theirs = replace(deps, db=db, settings=wanted, hooks=Hooks())
            deliveries = Deliveries(
                theirs,
                _Here(self._db.agent),
                policy=wanted.delivery_policy,
                stopping=stopping,
                wake=lambda: None,
            )
            count = deliveries.deliver(self._db.agent)
            owed.done()
        finally:
            db.close()
        return count

    def schemes(self) -> list[str]:
        """Return the schemes that a url may have."""
        return sorted({*self._transports, *self._factories, *_installed()})

    def check(self, url: str) -> Features:
        """
        Return the features of the transport that takes *url*.

        Raises:
            InvalidArgument: no transport serves it, or its transport refuses it.

        """
        scheme, colon, _ = url.partition(":")
        if not colon or scheme not in self.schemes():
            raise InvalidArgument(
                f"no transport for {url!r}: there are {', '.join(self.schemes())};"
                " a url begins with one of them and a colon"
            )
        try:
            transport = self.make(scheme)
        except Unreachable as error:
            raise InvalidArgument(f"{url!r}: {error}") from error
        if isinstance(transport, ChecksUrls):
            transport.check(url)
        return transport.features

    def is_known(self, name: str) -> Known:
        """
        Return whether messages for *name* can be routed: by this home, or by another one.

        Raises:
            AmbiguousRecipient: several homes serve an agent of that name.

        """
        if (peers.url_of(self._db.read, name) or self._beside(name)) is not None:
            return "here"
        found = self._find(name)
        homes = self._homes_of(name)
        told = tuple(each for each, _ in homes)
        if found is not None and homes:
            raise AmbiguousRecipient(_agent_and_pool(name, told), homes=told)
        if found is not None:  # if that is rolled back, its first push registers it again
            self._register(name, found)
            return "here"
        if len(homes) > 1:
            raise AmbiguousRecipient(_several(name, homes), homes=told)
        if not homes:
            self.tell_homes()
        return "elsewhere" if homes else ""

    def _homes_of(self, name: str) -> list[tuple[str, str]]:
        """Return name and url of the known homes that have told that they serve an agent."""
        if not self._has_home_key():
            return []
        from onceward.file import known_homes  # noqa: PLC0415 - few homes know others

        return known_homes.serving(self._home.directory.read, name)

    def _has_home_key(self) -> bool:
        """Return whether this home can know other homes."""
        return self._vfs is None and has_home_key(self.context.folder)

    def tell_homes(self) -> None:
        """Exchange lists of agents with the known homes, on a thread, if this home has a key."""
        if not self._has_home_key():
            return
        from onceward.transports.network.http import HttpTransport  # noqa: PLC0415 - an extra
        from onceward.transports.network.http_telling import tell_all  # noqa: PLC0415

        self._asked_homes = True
        tell_all(self.context, HttpTransport)

    def _elsewhere(self, name: str) -> str:
        """Return the url of the home that serves an agent; raise Unreachable."""
        homes = self._homes_of(name)
        if len(homes) > 1:
            raise Unreachable(_several(name, homes))
        if not homes:
            self.tell_homes()
            _nowhere(name)
        [(home, url)] = homes
        return f"{url}{home}" if url == POLL else url

    def file_of(self, name: str) -> Path | None:
        """Return the file of that name in our own folder, or None."""
        if AGENT.fullmatch(name) is None:  # a name from a parcel; it may hold a path
            return None
        path = self._db.path if name == self._db.agent else self._db.path.with_name(f"{name}.db")
        return path if path.exists() else None

    def _beside(self, name: str) -> str | None:
        """Return the url of a file that is beside ours now."""
        path = self.file_of(name)
        if path is None:
            return None
        if len(self._urls) >= URLS_MAX:
            self._urls = {}
        url = self._urls[name] = f"file:{path}"
        return url

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """
        Return the transport and the url for a peer, outside every transaction.

        Raises:
            Unreachable: there is none, or it cannot be created.

        """
        # a file beside ours was there; its transport looks again
        found = url or self._urls.get(name) or self._beside(name) or self._found(name)
        scheme = found.partition(":")[0]
        return self._transports.get(scheme) or self.make(scheme), found

    def _found(self, name: str) -> str:
        """Return the url of a name that a feature finds, which is registered, or of its home."""
        url = self._find(name)
        if url is None:
            return self._elsewhere(name)
        self._register(name, url)
        self._db.notifier.notify("out")
        return url

    def _register(self, name: str, url: str) -> None:
        self._db.write(lambda tx: peers.register(tx, {name: url}))

    def features(self, name: str, url: str | None) -> Features:
        """
        Return what the route to a peer promises; makes no transport, so a transaction may call it.

        Raises:
            NotMade: its transport is still to be made.
            Elsewhere: it is reached from another process.
            Unreachable: there is none, or it could not be created.

        """
        found = url or self._urls.get(name) or self._beside(name)
        if found is None:
            if self._find(name) is not None:
                raise NotMade
            found = self._elsewhere(name)
        scheme = found.partition(":")[0]
        made = self._transports.get(scheme)
        if foreign_library.theirs and _left(found) is not None:
            raise Elsewhere
        if made is not None:
            if scheme in self._placed and not self._placed[scheme].here():
                if url is None:
                    self._polled[name] = monotonic() + POLLED
                raise Elsewhere
            return made.features
        if scheme in self._failed:
            raise Unreachable(self._failed[scheme])
        raise NotMade

    def make(self, scheme: str) -> Transport:
        """
        Return the transport of a scheme, made now if it is not.

        Raises:
            Unreachable: there is none, or its factory fails; the next call tries again.

        """
        made = self._transports.get(scheme)
        if made is not None:
            return made
        limit = self._settings.deliver_timeout
        making = self._making.setdefault(scheme, forks.new_rlock())
        if not making.acquire(timeout=limit):  # so that the carriers of its peers come back
            why = f"another thread has been making it for {limit} s"
            self._failed[scheme] = f"the transport for {scheme} cannot be made: {why}"
            raise Unreachable(self._failed[scheme])
        try:
            made = self._transports.get(scheme)
            if made is None:
                made = self._make(scheme)
                self._add_schemes(made)
                self._transports[scheme] = made
        finally:
            making.release()
        return made

    def _make(self, scheme: str) -> Transport:
        try:
            made = self._factory(scheme)(self.context)
        except Unreachable as error:
            self._failed[scheme] = str(error)
            raise
        except Exception as error:
            why = error_text(error)
            if scheme in BUILT_IN and isinstance(error, ModuleNotFoundError):
                extra = "nats" if scheme == "nats" else "http"
                why = f"{error.name} is not installed: pip install 'onceward[{extra}]'"
            self._failed[scheme] = f"the transport for {scheme} cannot be made: {why}"
            raise Unreachable(self._failed[scheme]) from error
        self._failed.pop(scheme, None)
        return made

    def _factory(self, scheme: str) -> MakeTransport:
        if scheme in self._factories:
            return self._factories[scheme]
        if scheme in _installed():
            found: MakeTransport = _installed()[scheme].load()
            return found
        msg = f"no transport serves {scheme}: {Hint.TRANSPORT}"
        raise Unreachable(msg)

    def _open_file(self, path: Path, agent: str) -> Opened:
        patience = min(self._settings.busy_timeout, self._settings.deliver_timeout)
        wanted = Settings._inherit(busy_timeout=patience)
        # A file that is open in this process has a clock; one that we open gets ours.
        ours = (
            None
            if (file_checks.file_key(path), self._vfs or "") in open_files.files
            else self._db.clock
        )
        db = Database.open(
            path, agent=agent, settings=wanted, clock=ours, vfs=self._vfs, mode="deliver"
        )
        home = DirectoryHandle(db, wanted)
        own = Receiver(
            db,
            settings=self._settings,
            features=ARRIVES,
            inspect=judging(home, db.agent),
        ).accept

        def accept(parcel: Parcel) -> Answer:
            return (db.receivers or (own,))[-1](parcel)

        def close() -> None:
            home.close()
            db.close()

        return Opened(accept, close, db.rest_after_parcel)

    def close(self, seconds: float) -> None:
        """
        Close every transport, also where one of them raises.

        One that has not closed after *seconds* is left to a thread of its own.
        """
        with ExitStack() as steps:
            steps.callback(self._home.close)
            if self._asked_homes:
                from onceward.transports.network.http_telling import end_telling  # noqa: PLC0415

                steps.callback(end_telling, self.context)
            for transport in {id(made): made for made in self._transports.values()}.values():
                ours = isinstance(transport, FileTransport | MemoryTransport)
                close = (
                    transport.close
                    if ours
                    else partial(_close_within, seconds, transport, self._db.agent)
                )
                steps.callback(close)


def _close_within(seconds: float, transport: Transport, agent: str) -> None:
    """Close a transport on a thread; raise its error, or leave it to the thread if it hangs."""
    raised = list[BaseException]()

    def close() -> None:
        try:
            transport.close()
        except BaseException as error:  # noqa: BLE001 - raised where the postbox is closed
            raised.append(error)

    closing = Thread(target=close, name="onceward-close", daemon=True)
    closing.start()
    closing.join(seconds)
    if closing.is_alive():
        schemes = ", ".join(sorted(transport.features.schemes))
        log.warning("transport hangs", agent=agent, schemes=schemes, seconds=seconds)
    for error in raised:
        raise error


def _left(url: str) -> Path | None:
    """Return the path of a file url if another library uses the file in this process."""
    scheme, _, path = url.partition(":")
    return Path(path) if scheme == "file" and foreign_library.has(path) else None


class _Here:
    """The route to the agent of a postbox of this process."""

    def __init__(self, agent: str) -> None:
        self._transport, self._url = MemoryTransport(), f"memory:{agent}"

    def features(self, _name: str, _url: str | None) -> Features:
        """Return the promises of a call within the process."""
        return self._transport.features

    def elsewhere(self) -> list[str]:
        """Return nothing: it is here."""
        return []

    def left(self, _name: str) -> Path | None:
        """Return nothing, as above."""
        return None

    def route(self, _name: str, _url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url of the agent."""
        return self._transport, self._url


def _several(name: str, homes: list[tuple[str, str]]) -> str:
    among = " and ".join(each for each, _ in homes)
    return f"the homes {among} each serve an agent {name}: onceward peers add {name} URL chooses"


def _agent_and_pool(name: str, homes: tuple[str, ...]) -> str:
    agent = f"an agent of the home {' and of the home '.join(homes)}"
    return f"{name} is a pool, and {agent}: rename one, or choose the agent by onceward peers add"


def _nowhere(name: str) -> NoReturn:
    cure = f"register it (onceward peers add), or create {name}.db beside this file"
    raise Unreachable(f"{name} has no known url: {cure}")


def made_listener(given: Listener | MakeListener, context: TransportContext) -> Listener:
    """Return a listener, made now if a factory was given."""
    if isinstance(given, Listener) and not isinstance(given, type):
        return given
    if not callable(given):
        msg = f"listeners: {quoted(given)} must be a listener, or make one"
        raise InvalidArgument(msg)
    return given(context)
