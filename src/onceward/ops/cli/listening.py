"""Define the options of commands that accept parcels from other machines."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.file.directory import has_home_key
from onceward.file.file_checks import raise_files_limit
from onceward.message.names import POLL
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.options import Quiet, Several
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.views.lists import peers

if TYPE_CHECKING:
    from onceward.http import HomePollListener, HttpListener, PollListener
    from onceward.nats import NatsListener


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a command accepts parcels from other machines."""

    listen: str | None = None
    """Accept parcels at this URL: https://0.0.0.0:8443, or a server: nats://broker:4222."""
    certfile: Path | None = None
    """The https certificate, with its chain."""
    keyfile: Path | None = None
    """Its key. Default: in the certificate file."""
    client_ca: Path | None = None
    """Accept only connections with a certificate of these authorities (mTLS)."""
    behind_proxy: Annotated[bool, Quiet] = False
    """Listen with plain http for other machines, behind a proxy that speaks https."""
    connections: Annotated[int | None, Quiet] = None
    """Maximum open connections. Default: half of the allowed open files."""
    ask: Several = None
    """Poll this known home, or this peer's HTTP URL: it cannot reach us; may be repeated."""

    def listeners(self) -> list[HttpListener] | list[NatsListener]:
        """Return the listener, or None without a url; raise MissingExtra without the extra."""
        if self.listen is None:
            return []
        if self.listen.startswith("nats:"):
            return [self._at_nats(self.listen)]
        limit = raise_files_limit()
        if self.connections is not None and not 0 < self.connections < limit:
            msg = f"--connections is 1 to {limit - 1}, below the files that may be open (ulimit -n)"
            raise Usage(msg)
        from onceward.http import HttpLimits, HttpListener  # noqa: PLC0415 - an extra

        return [
            HttpListener(
                self.listen,
                certfile=str(self.certfile or ""),
                keyfile=str(self.keyfile or ""),
                client_ca=str(self.client_ca or ""),
                behind_proxy=self.behind_proxy,
                limits=HttpLimits(connections=self.connections),
            )
        ]

    def asking(
        self, path: Path, *, all_of_them: bool = True
    ) -> list[PollListener | HomePollListener]:
        """
        Return the poller of the peers for parcels, with their urls from an agent's file.

        Raises:
            NothingThere: the file has no such url of a peer, and *all_of_them* are wanted.

        """
        if not self.ask:
            return []
        urls, homes = _http_peers(path), http_homes(path)
        known = [peer for peer in self.ask if peer in urls or peer in homes]
        if all_of_them and (missing := [peer for peer in self.ask if peer not in known]):
            add = f"onceward peers add {missing[0]} https://HOST:PORT --db {path}"
            raise NothingThere(f"{path} has no HTTP url for the peer {missing[0]}: {add}")
        from onceward.http import PollListener  # noqa: PLC0415 - an extra

        return [
            _of_home(homes[peer]) if peer in homes else PollListener(urls[peer], peer)
            for peer in known
        ]

    def asking_each(
        self, paths: Collection[Path]
    ) -> dict[Path, list[PollListener | HomePollListener]]:
        """
        Return the pollers of each file; a file whose agent does not know a peer does not ask it.

        Raises:
            NothingThere: no file has an HTTP url of a peer.

        """
        if len(paths) == 1 or not self.ask:
            return {path: self.asking(path) for path in paths}
        known = {peer for path in paths for peer in _http_peers(path) | http_homes(path)}
        for peer in self.ask:
            if peer not in known:
                add = f"onceward peers add {peer} https://HOST:PORT --agent NAME"
                raise NothingThere(f"no agent here has an HTTP url for the peer {peer}: {add}")
        return {path: self.asking(path, all_of_them=False) for path in paths}

    def tell_left(self, box: Postbox) -> None:
        """Print which peers are not reached from here, because they poll another process."""
        if is_http(self.listen):
            return
        with views(box.file.path) as found:  # a connection that box lends would stay open
            left = [each.name for each in peers(found) if each.url == POLL]
        if left:
            where = f"the process that listens for {box.agent}, as onceward serve --listen does"
            note(f"{box.agent}: {', '.join(left)} poll for their parcels; they are left to {where}")

    def _at_nats(self, url: str) -> NatsListener:
        given = (self.certfile, self.keyfile, self.client_ca, self.behind_proxy, self.connections)
        if any(given):
            names = "--certfile, --keyfile, --client-ca, --behind-proxy and --connections"
            raise Usage(f"{names} are for https")
        from onceward.nats import NatsListener  # noqa: PLC0415 - loads asyncio

        return NatsListener(url)


LISTENING: Final = Listening()


def is_http(url: str | None) -> bool:
    """Return whether a url is one of HTTP."""
    return (url or "").startswith(("http:", "https:"))


def _http_peers(path: Path) -> dict[str, str]:
    """Return the HTTP urls in an agent's file by the name of their peer."""
    if not path.exists():
        return {}
    with views(path) as found:
        return {each.name: each.url for each in peers(found) if each.url and is_http(each.url)}


@cache
def _of_home(url: str) -> HomePollListener:
    """Return the poller of a home, which all agents of this process share."""
    from onceward.http import HomePollListener  # noqa: PLC0415 - an extra

    return HomePollListener(url)


def http_homes(path: Path) -> dict[str, str]:
    """Return the HTTP urls of the homes that the home of an agent's file knows, by their names."""
    if not has_home_key(path.parent):
        return {}
    from onceward.homes import Homes  # noqa: PLC0415 - an extra

    return {each.name: each.url for each in Homes(path.parent).list() if is_http(each.url)}
