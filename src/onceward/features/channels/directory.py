"""Store the channels of a home, with members and states, in the directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onceward.errors import (
    ChannelRefused,
    DuplicateChannel,
    NotParticipant,
    UnknownChannel,
    refuse,
)
from onceward.file.directory import DirectoryDatabase
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.names import Member, agent_name, no_option
from onceward.message.settings import Positive, Seconds
from onceward.message.topics import TopicPolicy, check_topic
from onceward.message.vocabulary import ChannelState, ChannelType, PauseMode

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DIRECT: Final = 2
"""Members of a direct channel."""

CREATE: Final = """
INSERT INTO channels (name, type, config, description, created_by, created_at, changed_at)
VALUES (?1, ?2, ?3, ?4, ?5, max(?6, (SELECT clock_at FROM meta)), ?6)
ON CONFLICT (name) DO NOTHING
"""
JOIN: Final = """
INSERT INTO members (channel, agent, role, joined_at)
SELECT c.name, :agent, :role, :now FROM channels AS c
 WHERE c.name = :channel AND c.state IN ('active', 'paused')
   AND (:most IS NULL OR (SELECT count(*) FROM members WHERE channel = :channel) < :most)
ON CONFLICT (channel, agent) DO NOTHING
"""
LEAVE: Final = "DELETE FROM members WHERE channel = ? AND agent = ? AND role <> 'owner'"
DELETE_MEMBER_SUBSCRIPTIONS: Final = (
    "DELETE FROM subscriptions WHERE channel = ? AND subscriber = ?"
)
ROLE: Final = "SELECT role FROM members WHERE channel = ? AND agent = ?"
SET_STATE: Final = """
UPDATE channels SET state = :state, mode = :mode, changed_at = :now
 WHERE name = :name AND state IN (SELECT value FROM json_each(:before))
"""
STATE: Final = "SELECT state, mode FROM channels WHERE name = ?"
DELETE: Final = "DELETE FROM channels WHERE name = ? AND state = 'closed'"
# Another channel of the name is younger than each message to this one.
STEP_CLOCK: Final = "UPDATE meta SET clock_at = max(clock_at, ?) + 1"
DELETE_MEMBERS: Final = "DELETE FROM members WHERE channel = ?"
DELETE_SUBSCRIPTIONS: Final = "DELETE FROM subscriptions WHERE channel = ?"
NOTICE: Final = "INSERT INTO system_notices (agent, topic, body, at) VALUES (?, ?, ?, ?)"

TRANSITIONS: Final = {
    "active": ("paused",),
    "paused": ("active",),
    "draining": ("active",),
    "closed": ("draining",),
}
"""The states from which each new state is reached; a pause may also change its mode."""


class ChannelConfig(BaseModel):
    """The configuration of a channel: seconds, bytes of UTF-8, and None for no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] = "at_least_once"
    """
    Promise of ``receive`` about a message.

    It is returned at most once, or until it is settled, or it is settled in the transaction of its
    effects.
    """
    max_message_size: Annotated[int, Field(ge=1)] = 1 << 20
    """Maximum content, on send and on receipt."""
    max_participants: Annotated[int, Field(ge=1)] | None = None
    """Maximum members."""
    ack_timeout: Positive = 30.0
    """Seconds that a reader holds a message before it is delivered again."""
    attempts: Annotated[int, Field(ge=1)] = 4
    """Attempts of a reader before a message becomes a dead letter."""
    retry_backoff: Seconds = 1.0
    """Pause before the first retry; it doubles with each further one."""
    echo: bool = False
    """Whether senders get their own messages."""
    sticky: bool = False
    """Whether new members get the retained messages."""
    priority_ordering: bool = True
    """Whether urgent messages are read first; otherwise in order of arrival."""
    max_pending: Annotated[int, Field(ge=1)] | None = None
    """Maximum messages of one sender in flight; more are accepted and held."""
    retain_for: Positive | None = None
    """How long a sticky channel retains messages."""
    retain_count: Annotated[int, Field(ge=1)] | None = None
    """Messages of each sender that a sticky channel retains."""
    retain_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes of each sender's content that a sticky channel retains."""
    bound_history: bool = False
    """Whether ``retain_count`` also limits each participant's history, in outbox and inbox."""
    topics: frozenset[str] | None = None
    """The topics that are allowed; None allows all."""

    @property
    def policy(self) -> TopicPolicy:
        """The policy of its topics."""
        return TopicPolicy(self.topics)


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel in the directory."""

    name: str
    type: ChannelType
    state: ChannelState
    mode: PauseMode | None
    config: ChannelConfig
    description: str
    created_by: str
    created_at: Millis

    @property
    def holds(self) -> bool:
        """Whether messages are accepted and held."""
        return self.state == "paused" and self.mode == "hold"


@lru_cache(maxsize=4096)
def _config(text: str) -> ChannelConfig:
    return ChannelConfig.model_validate_json(text)


def info(row: tuple[Any, ...] | None, name: str) -> ChannelInfo:
    """Return a channel from its row; raise UnknownChannel if there is none."""
    if row is None:
        raise UnknownChannel(f"there is no channel {name!r}: create it, or list the existing ones")
    name, kind, state, mode, config, description, created_by, created_at = row
    return ChannelInfo(
        name, kind, state, mode, _config(config), description, created_by, created_at
    )


def checked_config(given: dict[str, Any]) -> ChannelConfig:
    """Return a config; raise ValidationFailed with the name of the wrong field."""
    if unknown := given.keys() - ChannelConfig.model_fields:
        refuse(min(unknown), no_option("a channel", unknown, ChannelConfig.model_fields))
    try:
        made = ChannelConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        refuse(".".join(map(str, first["loc"])) or "config", first["msg"])
    if made.bound_history and made.retain_count is None:
        refuse("bound_history", "needs retain_count, the number of messages to keep")
    for topic in made.topics or ():
        check_topic(topic)
    return made


def create(
    directory: DirectoryDatabase,
    name: str,
    kind: str,
    owner: str,
    *,
    config: ChannelConfig,
    description: str,
) -> bool:
    """Create a channel with its owner; return False, unchanged, if the name exists."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        refuse("name", f"must match {NAME.pattern}", len(str(name)))
    if kind not in ("direct", "group", "broadcast", "pubsub"):
        refuse("type", "is not one of direct, group, broadcast, pubsub", len(str(kind)))
    if not isinstance(description, str):
        refuse("description", "must be text")
    text = config.model_dump_json(exclude_defaults=True)

    def work(tx: StoreTransaction) -> bool:
        if not tx.run(CREATE, (name, kind, text, description, owner, tx.now)):
            return False
        _add(tx, name, owner, "owner", None)
        notice(tx, owner, "channel.created", channel=name, type=kind)
        return True

    return directory.write(work)


def refuse_duplicate(name: str, *, created: bool) -> None:
    """Raise DuplicateChannel if the channel already exists."""
    if not created:
        msg = f"there is already a channel {name!r}: {Hint.USE_CHANNEL}"
        raise DuplicateChannel(msg)


def join(
    directory: DirectoryDatabase, channel: ChannelInfo, agent: str, role: str, by: str
) -> bool:
    """
    Add a member; return False if it already is one.

    Constraints decide, so the limit holds for any number of processes.
    """
    agent_name(agent)
    if role not in ("member", "observer"):
        refuse(
            "role",
            "is not one of member, observer: the owner is the agent that created the channel",
            len(str(role)),
        )
    most = DIRECT if channel.type == "direct" else channel.config.max_participants

    def work(tx: StoreTransaction) -> bool:
        if tx.rows(ROLE, (channel.name, agent)):
            return False
        if not _add(tx, channel.name, agent, role, most):
            _explain_join(tx, channel, most)
        notice(tx, by, "participant.joined", channel=channel.name, agent=agent, role=role)
        return True

    return directory.write(work)


def _add(tx: StoreTransaction, channel: str, agent: str, role: str, most: int | None) -> bool:
    named = {"channel": channel, "agent": agent, "role": role, "now": tx.now, "most": most}
    return tx.run(JOIN, named) > 0


def _explain_join(tx: StoreTransaction, channel: ChannelInfo, most: int | None) -> None:
    state = _state(tx, channel.name)
    if state in ("draining", "closed"):
        raise ChannelRefused(f"channel {channel.name} is {state}: it accepts no new members")
    refuse("participants", f"channel {channel.name} has reached its limit of {most}", most or 0)


def leave(directory: DirectoryDatabase, channel: str, agent: str, by: str) -> bool:
    """Remove a member; return False if it was not one. The owner closes the channel instead."""

    def work(tx: StoreTransaction) -> bool:
        if not tx.run(LEAVE, (channel, agent)):
            if tx.rows(ROLE, (channel, agent)):
                msg = f"{agent} owns channel {channel}: close it instead of leaving it"
                raise NotParticipant(msg)
            return False
        tx.run(DELETE_MEMBER_SUBSCRIPTIONS, (channel, agent))
        notice(tx, by, "participant.left", channel=channel, agent=agent)
        return True

    return directory.write(work)


def change_state(
    directory: DirectoryDatabase, name: str, state: str, agent: str, mode: PauseMode | None = None
) -> None:
    """
    Set a channel's state by one statement that names the allowed previous states.

    Raises:
        ChannelRefused: the current state does not allow that change.
        NotParticipant: only the owner may do this.

    """
    before = (*TRANSITIONS[state], "paused") if state == "paused" else TRANSITIONS[state]

    def work(tx: StoreTransaction) -> None:
        now = _state(tx, name)
        require(_role(tx, name, agent), ("owner",), name, agent, f"bring it to {state}")
        named = {"state": state, "mode": mode, "now": tx.now, "name": name}
        if not tx.run(SET_STATE, named | {"before": json.dumps(list(before))}):
            msg = f"channel {name} is {now}: from there it {_next(now)}, not {state}"
            raise ChannelRefused(msg)

    directory.write(work)


def _next(state: str) -> str:
    """Return the possible next states of a channel, as text."""
    states = [new for new, before in TRANSITIONS.items() if state in before]
    return f"becomes {' or '.join(states)}" if states else "can only be removed"


def delete(directory: DirectoryDatabase, name: str, agent: str) -> None:
    """Delete a closed channel, its members and subscriptions; raise ChannelRefused otherwise."""

    def work(tx: StoreTransaction) -> None:
        _state(tx, name)
        require(_role(tx, name, agent), ("owner",), name, agent, "remove it")
        if not tx.run(DELETE, (name,)):
            raise ChannelRefused(f"channel {name} is not closed: close it first")
        tx.run(STEP_CLOCK, (tx.now,))
        tx.run(DELETE_MEMBERS, (name,))
        tx.run(DELETE_SUBSCRIPTIONS, (name,))
        notice(tx, agent, "channel.deleted", channel=name)

    directory.write(work)


def _state(tx: StoreTransaction, name: str) -> str:
    """Return the state of a channel; raise UnknownChannel if there is none."""
    found = tx.rows(STATE, (name,))
    if not found:
        info(None, name)
    return str(found[0][0])


def _role(tx: StoreTransaction, channel: str, agent: str) -> str | None:
    found = tx.rows(ROLE, (channel, agent))
    return found[0][0] if found else None


def role_of(members: tuple[Member, ...], agent: str) -> str | None:
    """Return the role of an agent; None if it is not a member."""
    return next((member.role for member in members if member.agent == agent), None)


def require(
    role: str | None, allowed: tuple[str, ...], channel: str, agent: str, to_do: str
) -> None:
    """Raise NotParticipant unless *role* is an allowed one."""
    if role not in allowed:
        what = "is not a member of" if role is None else f"is {role} of"
        cure = "; join first" if role is None and "member" in allowed else ""
        roles = " or ".join(allowed)
        msg = f"{agent} {what} channel {channel} and may not {to_do}: {roles} may{cure}"
        raise NotParticipant(msg)


def notice(tx: StoreTransaction, by: str, topic: str, **body: Any) -> None:
    """Store a notice under a reserved topic, in the transaction of its cause; *by* will send it."""
    tx.run(NOTICE, (by, f"_system.{topic}", json.dumps(body), tx.now))
