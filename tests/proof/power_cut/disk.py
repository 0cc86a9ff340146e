"""Model a disk under writes: what a power cut leaves of each file, and what is not durable yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Kind = Literal["write", "truncate", "sync", "link", "unlink", "sync-folder"]
T = TypeVar("T")
Image = dict[str, bytes]
"""
A disk's files by name, as a machine finds them that starts again.

The name of a folder, in which other names are, ends with a slash; its content is empty.
"""


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that SQLite asked of the disk."""

    kind: Kind
    inode: int = 0
    name: str = ""
    at: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Pending:
    """A write or truncation that is not durable yet, with its place in the order of all."""

    number: int
    op: Op


@dataclass(slots=True)
class Inode:
    """One file, under any name."""

    durable: bytes = b""
    pending: list[Pending] = field(default_factory=list)


@dataclass(slots=True)
class Folder:
    """Names of one agent's files: the durable ones, and changes in the journal's order."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[str, int | None]] = field(default_factory=list)

    def names(self, changes: int) -> dict[str, int]:
        """Return the names as they stand when the first *changes* of the pending ones survived."""
        found = dict(self.durable)
        for name, inode in self.pending[:changes]:
            if inode is None:
                found.pop(name, None)
            else:
                found[name] = inode
        return found


class Disk:
    """
    The disk of all agents of a program, fed one operation after the other.

    Each agent has a folder of its own, whichever other file is there: a sync of
    one agent's folder must not be what saves the other.
    """

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.folders: dict[str, Folder] = {}
        self.count = 0

    @classmethod
    def of(cls, image: Image) -> Disk:
        """Return a disk on which all of *image* is durable."""
        made = cls()
        for number, (name, data) in enumerate(sorted(image.items()), 1):
            made.inodes[number] = Inode(data)
            made.folder(name).durable[name] = number
        return made

    def folder(self, name: str) -> Folder:
        """Return the folder in which a file of that name lies."""
        return self.folders.setdefault(folder_of(name), Folder())

    def apply(self, op: Op) -> None:
        """Take the next operation."""
        self.count += 1
        match op.kind:
            case "write" | "truncate":
                self.inodes[op.inode].pending.append(Pending(self.count, op))
            case "sync":
                inode = self.inodes[op.inode]
                inode.durable, inode.pending = (
                    replay(inode.durable, (each.op for each in inode.pending)),
                    [],
                )
            case "link":
                self.inodes.setdefault(op.inode, Inode())
                self.folder(op.name).pending.append((op.name, op.inode))
            case "unlink":
                self.folder(op.name).pending.append((op.name, None))
            case "sync-folder":
                folder = self.folder(op.name)
                folder.durable, folder.pending = folder.names(len(folder.pending)), []

    def clone(self) -> Disk:
        """Return a disk in the same state that goes its own way from here."""
        twin = Disk()
        twin.count = self.count
        twin.inodes = {
            number: Inode(each.durable, list(each.pending)) for number, each in self.inodes.items()
        }
        twin.folders = {
            name: Folder(dict(each.durable), list(each.pending))
            for name, each in self.folders.items()
        }
        return twin

    def cached(self) -> Image:
        """Return the files as a running machine shows them: what a killed program leaves."""
        return {
            name: replay(inode.durable, (each.op for each in inode.pending))
            for name, number in self.present().items()
            for inode in (self.inodes[number],)
        }

    def present(self) -> dict[str, int]:
        """Return the inode of each name as a running machine shows them."""
        return reachable(
            {
                name: number
                for folder in self.folders.values()
                for name, number in folder.names(len(folder.pending)).items()
            }
        )


def folder_of(name: str) -> str:
    """Return the folder of a name: the one that it says, or else that of its agent."""
    above, slash, _ = name.rstrip("/").rpartition("/")
    return above + slash or ("/" if name.endswith("/") else name.partition(".")[0])


def reachable(found: dict[str, T]) -> dict[str, T]:
    """Return the names without those in folders that are not there."""
    left = dict(found)
    for name in sorted(found):  # a folder stands before what is in it
        above = folder_of(name)
        if above.endswith("/") and above != "/" and above not in left:
            del left[name]
    return left


def replay(data: bytes, ops: Iterable[Op]) -> bytes:
    """Return *data* after *ops*, itself where there are none; gaps are filled with zeros."""
    todo = list(ops)
    if not todo:
        return data
    found = bytearray(data)
    for op in todo:
        if op.kind == "truncate":
            del found[op.at :]
            found.extend(bytes(op.at - len(found)))
        else:
            found.extend(bytes(max(0, op.at - len(found))))
            found[op.at : op.at + len(op.data)] = op.data
    return bytes(found)
