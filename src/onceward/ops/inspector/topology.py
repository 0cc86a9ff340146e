"""Lay out agents and the messages between them, in columns by distance from the sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import log1p
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.views.vocabulary import Level

MOST: Final = 30
"""Maximum agents of a drawing; above that only the table is shown."""
HIGHEST: Final = 10
"""Maximum agents of a column; a longer one is split."""
COLUMN: Final = 250
ROW: Final = 54
BOX: Final = (160, 38)
MARGIN: Final = 8
THIN: Final = 1.5
THICK: Final = 6.0
"""Extra pixels of the line with the highest rate."""
SIDE: Final = 46
"""Pixels by which a line between two agents of one column bends."""
APART: Final = 12
SPREAD: Final = 24
"""Pixels between two lines at one side of an agent, and maximum between the outer ones."""
TIP: Final = 3
SWEEPS: Final = 4
PATIENCE: Final = 300_000
"""Milliseconds that a message may wait before its line is amber."""
ORDER: Final[tuple[Level, ...]] = ("act", "wait", "ok")


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages from one agent to another."""

    sender: str
    recipient: str
    rate: float = 0.0
    """Messages a minute."""
    waits_since: Millis | None = None
    """Since when the oldest pushable message waits."""
    error: str | None = None
    """Why the recipient cannot be reached."""

    def level(self, now: Millis) -> Level:
        """Return its urgency: a failing flow needs a person, one with old messages waits."""
        if self.error is not None:
            return "act"
        old = self.waits_since is not None and now - self.waits_since > PATIENCE
        return "wait" if old else "ok"


Flows = Mapping[tuple[str, str], Flow]


@dataclass(frozen=True, slots=True)
class Node:
    """An agent in the drawing, by the middle of its left side."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Line:
    """The messages of two agents, in one or both directions."""

    flows: tuple[Flow, ...]
    path: str
    width: float
    tips: tuple[str, ...]
    level: Level


@dataclass(frozen=True, slots=True)
class Drawing:
    """Agents and lines, in pixels."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]


def drawing(flows: Flows, now: Millis) -> Drawing | None:
    """Return the positions of all agents and lines; None if there are none, or too many."""
    between = {key: flow for key, flow in flows.items() if flow.sender != flow.recipient}
    names = sorted(set(chain.from_iterable(flows)))
    if not names or len(names) > MOST:
        return None
    columns = _columns(names, between)
    nodes = {each.name: each for each in _places(columns)}
    highest = max((flow.rate for flow in between.values()), default=0.0)
    pairs = sorted({(min(key), max(key)) for key in between})
    ends = {pair: _ends(nodes, pair) for pair in pairs}
    ports = _ports(nodes, ends.values())
    lines = [
        _drawn(nodes, each, ports, _pair(between, *pair), highest=highest, now=now)
        for pair, each in ends.items()
    ]
    # failing flows are drawn above the others
    lines.sort(key=lambda each: -ORDER.index(each.level))
    width = MARGIN * 2 + COLUMN * (len(columns) - 1) + BOX[0] + SIDE
    height = MARGIN * 2 + ROW * max(map(len, columns))
    return Drawing(width, height, tuple(nodes.values()), tuple(lines))


def _pair(flows: Flows, one: str, other: str) -> tuple[Flow, ...]:
    """Return the flows between two agents, the larger first."""
    found = [flows[key] for key in ((one, other), (other, one)) if key in flows]
    return tuple(sorted(found, key=lambda each: -each.rate))


def _columns(names: list[str], flows: Flows) -> list[list[str]]:
    """Return the agents in columns by distance from the sources, near their partners."""
    near = _neighbours(names, flows)
    depths = _depths(names, flows, near)
    columns = [
        [name for name in names if depths[name] == at] for at in range(max(depths.values()) + 1)
    ]
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            places = {name: at for each in columns for at, name in enumerate(each)}
            column.sort(key=lambda name: _middle(near[name], places, places[name]))
    return [part for column in columns for part in _broken(column)]


def _neighbours(names: Iterable[str], flows: Flows) -> dict[str, set[str]]:
    near: dict[str, set[str]] = {name: set() for name in names}
    for sender, recipient in flows:
        near[sender].add(recipient)
        near[recipient].add(sender)
    return near


def _depths(names: list[str], flows: Flows, near: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the distance of each agent from the nearest source."""
    net = dict.fromkeys(names, 0.0)
    for (sender, recipient), flow in flows.items():
        net[sender] += flow.rate
        net[recipient] -= flow.rate
    called = {recipient for _, recipient in flows}
    edge = [name for name in names if name not in called and near[name]]
    depths = dict.fromkeys(edge, 0)
    for start in (None, *sorted(names, key=lambda name: (-net[name], name))):
        if start is not None and start not in depths:  # of a component without a source
            depths[start], edge = 0, [start]
        while edge:
            further = [each for name in edge for each in sorted(near[name])]
            edge = [each for each in dict.fromkeys(further) if each not in depths]
            depths |= {each: 1 + min(depths[n] for n in near[each] if n in depths) for each in edge}
    return depths


def _middle(near: Iterable[str], places: Mapping[str, int], own: int) -> float:
    found = [places[name] for name in near]
    return sum(found) / len(found) if found else own


def _broken(column: list[str]) -> list[list[str]]:
    """Return a column as parts of equal length that are not too long."""
    parts = -(-len(column) // HIGHEST)
    size = -(-len(column) // max(1, parts))
    return [column[at : at + size] for at in range(0, len(column), size)]


def _places(columns: list[list[str]]) -> Iterable[Node]:
    """Yield each agent with its position; short columns are centred."""
    highest = max(map(len, columns))
    for at, column in enumerate(columns):
        top = MARGIN + (highest - len(column)) * ROW // 2 + ROW // 2
        for row, name in enumerate(column):
            yield Node(name, MARGIN + at * COLUMN, top + row * ROW)


def _drawn(
    nodes: Mapping[str, Node],
    ends: _Ends,
    ports: Mapping[tuple[_Ends, str], int],
    flows: tuple[Flow, ...],
    *,
    highest: float,
    now: Millis,
) -> Line:
    """Return the line of two agents, as wide as their rate, in the colour of its worst flow."""
    rate = sum(flow.rate for flow in flows)
    width = round(THIN + THICK * log1p(rate) / log1p(max(2 * highest, 1.0)), 1)
    path, tips = _line(nodes, ends, ports, flows, width)
    level: Level = min((flow.level(now) for flow in flows), key=ORDER.index)
    return Line(flows, path, width, tips, level)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The sides and heights of a line's start, at its left agent, and end."""

    left: tuple[str, str]
    """Name of the agent, and which of its sides."""
    right: tuple[str, str]


def _ends(nodes: Mapping[str, Node], pair: tuple[str, str]) -> _Ends:
    """Return where a line between two agents begins and ends."""
    left, right = sorted(pair, key=lambda name: (nodes[name].x, nodes[name].y))
    same = nodes[left].x == nodes[right].x
    return _Ends((left, "right"), (right, "right" if same else "left"))


def _ports(nodes: Mapping[str, Node], lines: Iterable[_Ends]) -> dict[tuple[_Ends, str], int]:
    """Return the heights of all line ends: spread on each side, ordered by their targets."""
    sides: dict[tuple[str, str], list[tuple[int, _Ends]]] = {}
    for each in lines:
        sides.setdefault(each.left, []).append((nodes[each.right[0]].y, each))
        sides.setdefault(each.right, []).append((nodes[each.left[0]].y, each))
    ports: dict[tuple[_Ends, str], int] = {}
    for (name, _), found in sides.items():
        found.sort(key=lambda pair: (pair[0], pair[1].left, pair[1].right))
        apart = min(APART, SPREAD // max(1, len(found) - 1))
        for at, (_, each) in enumerate(found):
            ports[each, name] = nodes[name].y + round(apart * (at - (len(found) - 1) / 2))
    return ports


def _line(
    nodes: Mapping[str, Node],
    ends: _Ends,
    ports: Mapping[tuple[_Ends, str], int],
    flows: tuple[Flow, ...],
    width: float,
) -> tuple[str, tuple[str, ...]]:
    """Return a curve from the left agent to the right one, and the tips of its arrows."""
    (left, _), (right, side) = ends.left, ends.right
    begin, end = nodes[left].x + BOX[0], nodes[right].x + (BOX[0] if side == "right" else 0)
    inwards = -1 if side == "right" else 1
    middle = begin + SIDE if side == "right" else (begin + end) // 2
    above, below = ports[ends, left], ports[ends, right]
    towards, size = {flow.recipient for flow in flows}, TIP + width / 2
    back = round(size * 1.5)
    start = begin + back if left in towards else begin
    stop = end - inwards * back if right in towards else end
    path = f"M{start} {above}C{middle} {above} {middle} {below} {stop} {below}"
    tips = [_tip(end, below, stop, size)] if right in towards else []
    tips += [_tip(begin, above, start, size)] if left in towards else []
    return path, tuple(tips)


def _tip(x: int, y: int, back: int, size: float) -> str:
    """Return a triangle whose point is at an agent's side."""
    return f"M{x} {y}L{back} {y - size:.1f}V{y + size:.1f}Z"


def merged(known: Flow | None, found: Flow) -> Flow:
    """Return the flows between agents from the files of both."""
    if known is None:
        return found
    return replace(
        known,
        rate=max(known.rate, found.rate),
        waits_since=known.waits_since if found.waits_since is None else found.waits_since,
        error=known.error if found.error is None else found.error,
    )
