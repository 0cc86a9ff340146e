"""``onceward channel``: create channels, take part in them, and change their states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Channel, Postbox
from onceward.message.vocabulary import ChannelType, DeliveryMode, JoinRole, PauseMode
from onceward.ops.cli.command import Found, command, emit, picked
from onceward.ops.cli.durations import MaybeSpan
from onceward.ops.cli.options import Pattern, Quiet, said
from onceward.ops.cli.target import WHERE, Where

COLUMNS: Final = ("name", "type", "state", "created_by", "created_at", "description")
MEMBERS: Final = ("agent", "role", "number")
FACTS: Final = ("name", "type", "state", "mode", "created_by", "created_at", "description")
Name = Annotated[str, said("The channel's name.")]
Type = Annotated[ChannelType, said("Which participants receive a message.")]
Role = Annotated[JoinRole, said("A member reads and writes, an observer only reads.")]
Agents = Annotated[str, said("The agents' names.")]
OneAgent = Annotated[str, said("The agent's name; default: the channel itself is removed.")]
Mode = Annotated[PauseMode, said("hold accepts messages and keeps them; reject refuses them.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a channel; the defaults are those of the library."""

    delivery: DeliveryMode | None = None
    """Delivery guarantee for readers; default at_least_once."""
    max_message_size: int | None = None
    """Largest content in bytes of UTF-8; default 1048576."""
    max_participants: int | None = None
    """Maximum number of participants; default no limit."""
    ack_timeout: MaybeSpan = None
    """How long a reader may keep a message before it is delivered again; default 30s."""
    attempts: int | None = None
    """Attempts of a reader before a message becomes a dead letter; default 4."""
    retry_backoff: MaybeSpan = None
    """Delay before the first retry; it doubles with each retry; default 1s."""
    echo: Annotated[bool, Quiet] = False
    """Send senders a copy of their own messages."""
    sticky: Annotated[bool, Quiet] = False
    """Send new participants the messages that the channel retains."""
    as_they_came: Annotated[bool, Quiet] = False
    """Read messages in order of arrival, not by priority."""
    max_pending: int | None = None
    """Maximum undelivered messages of one sender; further ones are accepted and wait."""
    retain_for: MaybeSpan = None
    """How long a sticky channel keeps messages."""
    retain_count: int | None = None
    """How many messages of each sender a sticky channel keeps."""
    retain_bytes: int | None = None
    """How many bytes of each sender's content a sticky channel keeps."""
    bound_history: Annotated[bool, Quiet] = False
    """Apply --retain-count to each participant's history too."""
    topic: Annotated[list[str] | None, Parameter(negative=())] = None
    """A topic of the channel, which then refuses all others; may be repeated."""

    def given(self) -> dict[str, Any]:
        """Return the given options as keywords of the library."""
        given = vars(self).items()
        told = {name: each for name, each in given if each is not None and each is not False}
        if told.pop("as_they_came", False):
            told["priority_ordering"] = False
        if (topics := told.pop("topic", None)) is not None:
            told["topics"] = frozenset(topics)
        return told


CONFIG = Config()


@command("name")
def create(
    box: Postbox,
    name: Name,
    type: Type = "group",
    /,
    *,
    description: str = "",
    ensure: Annotated[bool, Quiet] = False,
    config: Config = CONFIG,
) -> Found:
    """
    Create a channel that this agent owns, and print its name.

    Example: onceward channel create news pubsub --description 'build results'

    Args:
        description: Purpose of the channel.
        ensure: Accept an existing channel unchanged, instead of failing with exit code 5.

    """
    make = box.channels.ensure if ensure else box.channels.create
    created = make(name, type, description=description, **config.given()).created
    box.run_until_idle()
    return {"name": name, "created": created}


@command()
def ls(box: Postbox, name: Name | None = None, /, *, where: Where = WHERE) -> Found:
    """
    List the channels of the home, or the participants of one.

    Columns: name, type, state, created_by, created, description; of one channel: agent, role,
    number.

    Example: onceward channel ls news
    """
    columns = COLUMNS if name is None else MEMBERS
    found = box.channels.list() if name is None else box.channels.get(name).members()
    return emit([picked(each, columns) for each in found], columns, where)


@command()
def show(box: Postbox, name: Name, /) -> Found:
    """
    Show a channel: its type, its state and its settings.

    Example: onceward channel show news
    """
    found = box.channels.get(name).info()
    return picked(found, FACTS) | found.config.model_dump(mode="json")


@command("channel", "new")
def join(box: Postbox, name: Name, /, *, role: Role = "member") -> Found:
    """
    Join a channel.

    Example: onceward channel join news --role observer
    """
    return _changed(box, {"channel": name, "new": box.channels.get(name).join(role)})


@command("channel", "left")
def leave(box: Postbox, name: Name, /) -> Found:
    """
    Leave a channel.

    Example: onceward channel leave news
    """
    return _changed(box, {"channel": name, "left": box.channels.get(name).leave()})


@command("channel", "new")
def add(box: Postbox, name: Name, /, *agents: Agents, role: Role = "member") -> Found:
    """
    Add agents to a channel that this agent owns, all or none, and print how many are new.

    Example: onceward channel add news billing audit
    """
    return _changed(box, {"channel": name, "new": box.channels.get(name).add_many(agents, role)})


@command("channel", "removed")
def remove(box: Postbox, name: Name, agent_name: OneAgent, /) -> Found:
    """
    Remove an agent from a channel that this agent owns.

    Example: onceward channel remove news audit
    """
    return _changed(box, {"channel": name, "removed": box.channels.get(name).remove(agent_name)})


@command("channel", "deleted")
def delete(box: Postbox, name: Name, /) -> Found:
    """
    Delete a closed channel that this agent owns; its name may be used again.

    Example: onceward channel delete news
    """
    box.channels.delete(name)
    return _changed(box, {"channel": name, "deleted": True})


@command("channel", "new")
def subscribe(box: Postbox, name: Name, pattern: Pattern, /) -> Found:
    """
    Subscribe to a channel's messages under a pattern of topics.

    An agent that is not a participant becomes an observer.

    Example: onceward channel subscribe news 'build.#'
    """
    return _changed(box, {"channel": name, "new": box.channels.get(name).subscribe(pattern)})


@command("channel", "ended")
def unsubscribe(box: Postbox, name: Name, pattern: Pattern, /) -> Found:
    """
    End a subscription to a channel's topics.

    Example: onceward channel unsubscribe news 'build.#'
    """
    return _changed(box, {"channel": name, "ended": box.channels.get(name).unsubscribe(pattern)})


@command("channel", "state")
def pause(box: Postbox, name: Name, /, *, mode: Mode = "hold") -> Found:
    """
    Pause a channel that this agent owns.

    Example: onceward channel pause news --mode reject
    """
    return _state(box, name, lambda channel: channel.pause(mode))


@command("channel", "state")
def resume(box: Postbox, name: Name, /) -> Found:
    """
    End the pause of a channel; messages that wait at their senders are sent.

    Example: onceward channel resume news
    """
    return _state(box, name, Channel.resume)


@command("channel", "state")
def drain(box: Postbox, name: Name, /) -> Found:
    """
    Refuse new messages in a channel that this agent owns; sent ones are still delivered.

    Example: onceward channel drain news
    """
    return _state(box, name, Channel.drain)


@command("channel", "state")
def close(box: Postbox, name: Name, /) -> Found:
    """
    Close a channel that this agent owns; messages that wait at senders become dead letters.

    Example: onceward channel close news
    """
    return _state(box, name, Channel.close)


def _changed(box: Postbox, row: dict[str, Any]) -> Found:
    """Deliver the messages of the change, and return the row to print."""
    box.run_until_idle()
    return [row]


def _state(box: Postbox, name: str, change: Callable[[Channel], object]) -> Found:
    """Change a channel, deliver the messages of the change, and return its state."""
    channel = box.channels.get(name)
    change(channel)
    box.run_until_idle()
    info = channel.info()
    return [{"channel": info.name, "state": info.state}]
