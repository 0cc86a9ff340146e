"""What tests of homes share: two homes that know each other, each with served agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceward import Postbox
from onceward.homes import Homes
from onceward.http import HttpListener

LOOPBACK = "http://127.0.0.1:0"


@dataclass
class Home:
    """A home whose agents are served by one listener."""

    folder: Path
    server: HttpListener
    stack: ExitStack = field(repr=False)
    boxes: dict[str, Postbox] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Return where its agents are served."""
        return self.server.url

    @property
    def homes(self) -> Homes:
        """Return its key and its known homes."""
        return Homes(self.folder)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of its key."""
        return self.homes.show().fingerprint

    def open(self, name: str, *, start: bool = False) -> Postbox:
        """Serve one agent more."""
        path = self.folder / f"{name}.db"
        box = Postbox(path, agent=name, start=start, listeners=[self.server])
        self.boxes[name] = self.stack.enter_context(box)
        return box

    def close(self, name: str) -> None:
        """Stop serving an agent."""
        self.boxes.pop(name).close()

    def knows(self, other: Home, name: str) -> None:
        """Add another home under a name."""
        self.homes.add(other.url, other.fingerprint, name)


@contextmanager
def home(
    folder: Path, agents: Sequence[str], *, url: str = LOOPBACK, **files: Any
) -> Iterator[Home]:
    """Serve agents from a home with a key; *files* are those of a certificate."""
    folder.mkdir()
    with ExitStack() as stack:
        made = Home(folder, HttpListener(url, **files), stack)
        Homes(folder).show()
        for name in agents:
            made.open(name)
        yield made


@contextmanager
def two_homes(
    folder: Path, near: Sequence[str], far: Sequence[str], **how: Any
) -> Iterator[tuple[Home, Home]]:
    """Serve two homes that know each other as ``near`` and ``far``."""
    with home(folder / "near", near, **how) as ours, home(folder / "far", far, **how) as theirs:
        ours.knows(theirs, "far")
        theirs.knows(ours, "near")
        theirs.homes.ping("near")
        yield ours, theirs


def carried(sender: Postbox, recipient: Postbox, to: str, body: object) -> Any:
    """Send a message, and return the body of the next one that arrives."""
    sender.send(to, body)
    sender.run_until_idle()
    message = recipient.receive()
    if message is None:
        return [(each.name, each.last_error) for each in sender.peers.list()]
    with message:
        return message.body
