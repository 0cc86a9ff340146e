"""Draw the image that a power cut leaves of durable and unsynced writes, by several models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Final

from tests.proof.power_cut.disk import Disk, Image, Inode, Op, Pending, reachable, replay

SECTOR: Final = 512
Content = Callable[[Inode], bytes]
Model = Callable[[Disk, Random], Image]


def nothing(disk: Disk, rng: Random) -> Image:
    """Return what syncs had made durable, and not a byte or a name more."""
    del rng
    return _image(disk, lambda inode: inode.durable, lambda _: 0)


def everything(disk: Disk, rng: Random) -> Image:
    """Return what a running machine would show."""
    del rng
    return disk.cached()


def torn(disk: Disk, rng: Random) -> Image:
    """Return a prefix of the operations under way, the last of them torn in the middle."""
    last = _one_of(disk, rng)

    def content(inode: Inode) -> bytes:
        whole = [each.op for each in inode.pending if each.number < last]
        return replay(
            inode.durable,
            whole + [_head(each.op, rng) for each in inode.pending if each.number == last],
        )

    return _image(disk, content, _some(rng))


def subset(disk: Disk, rng: Random) -> Image:
    """Return the disk with each operation under way done or not, at random."""
    share = rng.choice((0.1, 0.5, 0.9))
    return _image(
        disk,
        lambda inode: replay(inode.durable, [p.op for p in inode.pending if rng.random() < share]),
        _some(rng),
    )


def newest(disk: Disk, rng: Random) -> Image:
    """Return the disk with the latest operations under way done, and those before them not."""
    first = _one_of(disk, rng)
    return _image(
        disk,
        lambda inode: replay(inode.durable, [p.op for p in inode.pending if p.number >= first]),
        _some(rng),
    )


def one_file(disk: Disk, rng: Random) -> Image:
    """Return the disk with one file written back and all others as their syncs left them."""
    busy = [number for number, inode in sorted(disk.inodes.items()) if inode.pending]
    lucky = disk.inodes[rng.choice(busy)] if busy else None
    return _image(
        disk,
        lambda i: replay(i.durable, [p.op for p in i.pending]) if i is lucky else i.durable,
        _some(rng),
    )


def sectors(disk: Disk, rng: Random) -> Image:
    """Return the disk with a random half of the 512-byte sectors under way written."""
    return _image(
        disk, lambda inode: replay(inode.durable, _scattered(inode.pending, rng)), _some(rng)
    )


def size_only(disk: Disk, rng: Random) -> Image:
    """Return files of their new size whose new part is zeros: only the size was journalled."""

    def content(inode: Inode) -> bytes:
        size = len(replay(inode.durable, [p.op for p in inode.pending]))
        return inode.durable[:size].ljust(size, b"\0")

    return _image(disk, content, _some(rng))


def garbage(disk: Disk, rng: Random) -> Image:
    """Return the disk with some unsynced writes done and random bytes in place of the others."""

    def content(inode: Inode) -> bytes:
        return replay(
            inode.durable,
            [_noise(p.op, rng) if rng.random() < 0.5 else p.op for p in inode.pending],
        )

    return _image(disk, content, _some(rng))


MODELS: Final[dict[str, tuple[int, Model]]] = {
    "nothing": (1, nothing),
    "everything": (1, everything),
    "torn": (2, torn),
    "subset": (3, subset),
    "newest": (2, newest),
    "one-file": (2, one_file),
    "sectors": (3, sectors),
    "size-only": (1, size_only),
    "garbage": (2, garbage),
}
"""Each model, and how often it is drawn at each cut."""
DRAWS: Final = tuple((name, draw) for name, (draws, _) in MODELS.items() for draw in range(draws))


def image(disk: Disk, model: str, rng: Random) -> Image:
    """Draw one image of *disk* by the model of that name."""
    return MODELS[model][1](disk, rng)


def _image(disk: Disk, content: Content, changes: Callable[[int], int]) -> Image:
    found: Image = {}
    for _, folder in sorted(disk.folders.items()):
        for name, number in sorted(folder.names(changes(len(folder.pending))).items()):
            found[name] = content(disk.inodes[number])
    return reachable(found)


def _some(rng: Random) -> Callable[[int], int]:
    return lambda most: rng.randint(0, most)


def _one_of(disk: Disk, rng: Random) -> int:
    under_way = sorted(each.number for inode in disk.inodes.values() for each in inode.pending)
    return rng.choice(under_way) if under_way else 0


def _head(op: Op, rng: Random) -> Op:
    return replace(op, data=op.data[: rng.randrange(len(op.data))]) if len(op.data) > 1 else op


def _noise(op: Op, rng: Random) -> Op:
    return replace(op, data=rng.randbytes(len(op.data)))


def _scattered(pending: Iterable[Pending], rng: Random) -> list[Op]:
    pieces = [piece for each in pending for piece in _pieces(each.op)]
    return [piece for piece in pieces if rng.random() < 0.5]


def _pieces(op: Op) -> list[Op]:
    if op.kind != "write":
        return [op]
    edges = [
        op.at,
        *range((op.at // SECTOR + 1) * SECTOR, op.at + len(op.data), SECTOR),
        op.at + len(op.data),
    ]
    return [
        replace(op, at=start, data=op.data[start - op.at : end - op.at])
        for start, end in itertools.pairwise(edges)
        if end > start
    ]
