"""
Read the messages that a message has caused, with those that they have caused in turn.

A message that a handler sends has the id of the handled one as its cause, and belongs to the same
conversation, by which it is found. Each file of the home is asked by two statements for each level.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceward.errors import OncewardError
from onceward.file import read_only
from onceward.message.caused import CausedMessage, Way
from onceward.message.clock import Millis
from onceward.message.vocabulary import CANCEL, PROGRESS

Ask = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]
"""Returns the rows of a statement."""
MOST: Final = 1_000
"""Maximum messages of a tree, those of its upper levels first."""
LEVELS: Final = 32
"""Maximum levels of a tree."""
FILES: Final = 64
"""Maximum files of other agents that are read."""
DEAD: Final = 2_000
"""Newest dead letters of a file that are searched for messages that a handler sent."""
HAS_GROUPS: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'onceward_group_messages'"
IN_GROUP: Final = "(SELECT group_id FROM onceward_group_messages WHERE message_id = m.id)"
NO_GROUP: Final = "NULL"
"""Without the feature, no message is in a group."""
WAY: Final = """
CASE WHEN m.frame ->> '$.inreplyto' IS NOT NULL THEN 'reply'
     WHEN {grouped} IS NOT NULL THEN 'group'
     WHEN EXISTS (SELECT 1 FROM _onceward_pending_replies AS r WHERE r.id = m.id) THEN 'request'
     ELSE 'send' END"""
HANDLED: Final = """
WITH handled (sender, id) AS MATERIALIZED (
       SELECT value ->> 0, value ->> 1 FROM json_each(:handled))
"""
STATES: Final = f"""{HANDLED}
SELECT b.sender, b.id, b.state, b.waits_for, b.reason
  FROM handled AS h CROSS JOIN onceward_inbox AS b ON b.sender = h.sender AND b.id = h.id
 UNION ALL
SELECT d.peer, d.id, 'dead', NULL, d.reason
  FROM handled AS h CROSS JOIN _onceward_dead_letters AS d
    ON d.origin = 'inbox' AND d.peer = h.sender AND d.id = h.id
"""  # noqa: S608 - constants of ours
# A frame whose body is stored beside it ends before its data.
SENT: Final = f"""{HANDLED}
, mine AS (
  SELECT seq, id, recipient, type, state, reason, created_at,
         iif(body_id IS NULL, frame, frame || 'null}}') AS frame
    FROM _onceward_outbox
   WHERE correlation_id = :root AND coalesce(kind, '') NOT IN ('{PROGRESS}', '{CANCEL}')
   UNION ALL
  SELECT seq, id, peer, type, 'dead', reason, created_at, frame
    FROM (SELECT seq, id, peer, type, reason, created_at, frame, origin, correlation_id
            FROM _onceward_dead_letters ORDER BY seq DESC LIMIT {DEAD})
   WHERE origin = 'outbox' AND correlation_id = :root)
SELECT m.frame ->> '$.causationid' AS cause, m.id, m.recipient, m.type, {WAY}, m.created_at,
       m.state, m.reason, {{grouped}}
  FROM mine AS m
 WHERE json_valid(m.frame) AND cause IN (SELECT id FROM handled)
 ORDER BY m.created_at, m.seq LIMIT :limit
"""  # noqa: S608 - constants of ours


class Root(NamedTuple):
    """The message whose tree is read."""

    id: str
    sender: str
    recipient: str
    correlation_id: str | None


@dataclass(slots=True)
class _Caused:
    """A message of the tree while it is read."""

    id: str
    sender: str
    recipient: str
    type: str
    way: Way
    sent_at: Millis
    state: str
    reason: str | None
    group: str | None
    waits_for: str | None = None
    children: list[_Caused] = field(default_factory=list)

    def made(self) -> CausedMessage:
        """Return the message with those that it caused."""
        return CausedMessage(
            self.id, self.sender, self.recipient, self.type, self.way, self.state, self.sent_at,
            waits_for=self.waits_for, reason=self.reason, group=self.group,
            children=tuple(each.made() for each in self.children),
        )  # fmt: skip


def caused(root: Root, files: Callable[[str], Ask | None]) -> tuple[CausedMessage, ...]:
    """
    Return the messages that *root* has caused, and those that they caused.

    *files* returns how the file of an agent is asked, or None: what its handlers sent is unknown.
    """
    top = _Caused(root.id, root.sender, root.recipient, "", "send", 0, "", None, None)
    tree, level = _Tree(root), [top]
    for _ in range(LEVELS):
        below: list[_Caused] = []
        for agent, nodes in _by_recipient(level).items():
            with suppress(OncewardError):  # what cannot be read now is unknown
                if (ask := files(agent)) is not None:
                    below += tree.level(ask, agent, nodes)
        level = below
    return tuple(each.made() for each in top.children)


def _by_recipient(nodes: list[_Caused]) -> dict[str, dict[str, _Caused]]:
    """Return messages by their recipients and ids."""
    found = defaultdict[str, dict[str, _Caused]](dict)
    for each in nodes:
        found[each.recipient][each.id] = each
    return found


class _Tree:
    """A tree that is read level by level."""

    def __init__(self, root: Root) -> None:
        self._root, self._seen = root.correlation_id or root.id, {root.id}
        self._sent = ""

    def level(self, ask: Ask, agent: str, nodes: dict[str, _Caused]) -> list[_Caused]:
        """Read how far messages are in their recipient's file; return what its handlers sent."""
        handled = json.dumps([(each.sender, each.id) for each in nodes.values()])
        for sender, message_id, *state in ask(STATES, {"handled": handled}):
            if (node := nodes[message_id]).sender == sender:
                node.state, node.waits_for, node.reason = state
        if not self._sent:  # the files of a home have one schema
            self._sent = SENT.replace("{grouped}", IN_GROUP if ask(HAS_GROUPS, {}) else NO_GROUP)
        left = MOST + 1 - len(self._seen)
        named = {"handled": handled, "root": self._root, "limit": left}
        found: list[_Caused] = []
        for cause, message_id, *rest in ask(self._sent, named):
            if message_id not in self._seen:  # an id that a program chose may be its own cause
                self._seen.add(message_id)
                found.append(_Caused(message_id, agent, *rest))
                nodes[cause].children.append(found[-1])
        return found


def in_home(root: Root, agent: str, ask: Ask, path: Path) -> tuple[CausedMessage, ...]:
    """Return what *root* has caused, by the file of *agent* at *path* and those beside it."""
    with ExitStack() as stack:
        others = beside(path, stack)
        return caused(root, lambda name: ask if name == agent else others(name))


def beside(path: Path, stack: ExitStack) -> Callable[[str], Ask | None]:
    """Return how the files of the home of *path* are asked: each is open until *stack* closes."""
    opened: dict[str, Ask | None] = {}

    def ask_of(agent: str) -> Ask | None:
        if agent not in opened and len(opened) < FILES:
            opened[agent] = None
            with suppress(OncewardError):  # it is missing, or cannot be read now
                found = stack.enter_context(read_only.opened(path.with_name(f"{agent}.db")))
                opened[agent] = found.rows
        return opened.get(agent)

    return ask_of
