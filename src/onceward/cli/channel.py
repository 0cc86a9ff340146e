"""``onceward channel``: making channels, taking part in them, and their states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from onceward import Channel
from onceward.cli.durations import MaybeSpan
from onceward.cli.exit_codes import DONE
from onceward.cli.output import show, show_one
from onceward.cli.target import Quiet, Where, open_box
from onceward.model.vocabulary import ChannelType, PauseMode

WHERE = Where()
COLUMNS: Final = ("name", "type", "state", "created_by", "created_at", "description")
MEMBERS: Final = ("agent", "role", "number")
Role = Literal["member", "observer"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Config:
    """How a channel behaves; what is not said is as the library has it."""

    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] | None = None
    """What receiving promises; default at_least_once."""
    max_message_size: int | None = None
    """Largest content in bytes of UTF-8; default 1048576."""
    max_participants: int | None = None
    """How many may take part; default no limit."""
    ack_timeout: MaybeSpan = None
    """How long a reader has a message before it is handed out again; default 30s."""
    max_retries: int | None = None
    """Re-attempts of a reader before a message becomes a dead letter; default 3."""
    retry_backoff: MaybeSpan = None
    """Pause before the first re-attempt; it doubles with each further one; default 1s."""
    echo: Annotated[bool, Quiet] = False
    """Let senders have a copy of their own."""
    sticky: Annotated[bool, Quiet] = False
    """Give late ones what the channel retains."""
    as_they_came: Annotated[bool, Quiet] = False
    """Read messages as they came, urgent ones not first."""
    max_pending: int | None = None
    """How many messages of one sender may be on their way; more are accepted and wait."""
    retain_for: MaybeSpan = None
    """How long a sticky channel retains messages."""
    retain_count: int | None = None
    """How many messages of each sender a sticky channel retains."""
    retain_bytes: int | None = None
    """How many bytes of each sender's content a sticky channel retains."""
    topic: Annotated[list[str] | None, Parameter(negative=())] = None
    """A topic there is; may be given several times, and others are then refused."""

    def given(self) -> dict[str, Any]:
        """Return what was said, by the library's words."""
        said: dict[str, Any] = {
            name: value
            for name, value in vars(self).items()
            if value is not None and value is not False
        }
        if said.pop("as_they_came", False):
            said["priority_ordering"] = False
        if (topics := said.pop("topic", None)) is not None:
            said["topics"] = frozenset(topics)
        return said


CONFIG = Config()


def create(
    name: str,
    type: ChannelType = "group",
    /,
    *,
    description: str = "",
    ensure: Annotated[bool, Quiet] = False,
    config: Config = CONFIG,
    where: Where = WHERE,
) -> int:
    """
    Make a channel that our agent owns, and print its name.

    Args:
        name: What it is called in the home.
        type: Who has a message: direct, group, broadcast or pubsub.
        description: What it is for.
        ensure: Take the channel that is there as it is, instead of failing with exit code 5.
        config: How it behaves.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        make = box.channels.ensure if ensure else box.channels.create
        created = make(name, type, description=description, **config.given()).created
        box.run_until_idle()
    if where.json:
        show_one({"name": name, "created": created}, "json")
    else:
        show([{"name": name}], ("name",), "lines")
    return DONE


def ls(name: str | None = None, /, *, where: Where = WHERE) -> int:
    """
    List the channels of the home, or who takes part in one.

    Columns: name, type, state, created_by, created, description; of one channel agent, role, number.

    Args:
        name: A channel, whose participants are listed.
        where: Any file of the home.

    """
    with open_box(where.path()) as box:
        if name is None:
            show(
                [
                    {column: getattr(each, column) for column in COLUMNS}
                    for each in box.channels.list()
                ],
                COLUMNS,
                where.style,
            )
        else:
            members = box.channels.get(name).members()
            show(
                [{column: getattr(each, column) for column in MEMBERS} for each in members],
                MEMBERS,
                where.style,
            )
    return DONE


def about(name: str, /, *, where: Where = WHERE) -> int:
    """
    Show a channel: its type, its state and how it behaves.

    Args:
        name: The channel.
        where: Any file of the home.

    """
    with open_box(where.path()) as box:
        found = box.channels.get(name).info()
    facts = {
        column: getattr(found, column)
        for column in ("name", "type", "state", "mode", "created_by", "created_at", "description")
    }
    show_one(facts | found.config.model_dump(mode="json"), where.style)
    return DONE


def join(name: str, /, *, role: Role = "member", where: Where = WHERE) -> int:
    """
    Take part in a channel.

    Args:
        name: The channel.
        role: member, or observer, who only reads.
        where: Whose agent.

    """
    return _change(name, "new", lambda channel: channel.join(role), where)


def leave(name: str, /, *, where: Where = WHERE) -> int:
    """
    Take part in a channel no longer.

    Args:
        name: The channel.
        where: Whose agent.

    """
    return _change(name, "left", lambda channel: channel.leave(), where)


def add(name: str, /, *agents: str, role: Role = "member", where: Where = WHERE) -> int:
    """
    Let agents take part in a channel that our agent owns, all or none, and print how many are new.

    Args:
        name: The channel.
        agents: Who.
        role: member, or observer, who only reads.
        where: Whose agent.

    """
    return _change(name, "new", lambda channel: channel.add_many(agents, role), where)


def remove(name: str, agent_name: str, /, *, where: Where = WHERE) -> int:
    """
    Let an agent take part no longer in a channel that our agent owns.

    Args:
        name: The channel.
        agent_name: Who.
        where: Whose agent.

    """
    return _change(name, "left", lambda channel: channel.remove(agent_name), where)


def subscribe(name: str, pattern: str, /, *, where: Where = WHERE) -> int:
    """
    Have what is sent in a channel under a pattern of topics; who takes no part yet becomes an observer.

    Args:
        name: The channel.
        pattern: One star is one segment, a trailing number sign any number.
        where: Whose agent.

    """
    return _change(name, "new", lambda channel: channel.subscribe(pattern), where)


def unsubscribe(name: str, pattern: str, /, *, where: Where = WHERE) -> int:
    """
    End a subscription to a channel's topics.

    Args:
        name: The channel.
        pattern: As it was subscribed to.
        where: Whose agent.

    """
    return _change(name, "ended", lambda channel: channel.unsubscribe(pattern), where)


def pause(name: str, /, *, mode: PauseMode = "hold", where: Where = WHERE) -> int:
    """
    Pause a channel that our agent owns.

    Args:
        name: The channel.
        mode: hold accepts what is sent and lets it wait; reject refuses it.
        where: Whose agent.

    """
    return _move(name, lambda channel: channel.pause(mode), where)


def resume(name: str, /, *, where: Where = WHERE) -> int:
    """
    Go on where pause stopped; what waits at its senders is let go.

    Args:
        name: The channel.
        where: Whose agent.

    """
    return _move(name, lambda channel: channel.resume(), where)


def drain(name: str, /, *, where: Where = WHERE) -> int:
    """
    Take nothing more in a channel that our agent owns; what was sent is still delivered and read.

    Args:
        name: The channel.
        where: Whose agent.

    """
    return _move(name, lambda channel: channel.drain(), where)


def close(name: str, /, *, where: Where = WHERE) -> int:
    """
    End a channel that our agent owns; what still waits at its senders becomes dead letters.

    Args:
        name: The channel.
        where: Whose agent.

    """
    return _move(name, lambda channel: channel.close(), where)


def delete(name: str, /, *, where: Where = WHERE) -> int:
    """
    Forget a closed channel; its name may be used again.

    Args:
        name: The channel.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        box.channels.get(name).delete()
        box.run_until_idle()
    show([{"channel": name, "state": "deleted"}], ("channel", "state"), where.style)
    return DONE


def _change(name: str, told: str, work: Callable[[Channel], object], where: Where) -> int:
    with open_box(where.path()) as box:
        found = work(box.channels.get(name))
        box.run_until_idle()
    show([{"channel": name, told: found}], ("channel", told), where.style)
    return DONE


def _move(name: str, work: Callable[[Channel], None], where: Where) -> int:
    with open_box(where.path()) as box:
        channel = box.channels.get(name)
        work(channel)
        box.run_until_idle()
        state = channel.info().state
    show([{"channel": name, "state": state}], ("channel", "state"), where.style)
    return DONE
