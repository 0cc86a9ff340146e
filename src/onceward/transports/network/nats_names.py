"""
Name the subjects, streams and permissions of agents on a NATS server.

A parcel from alice to bob has the subject ``ow.parcel.bob.alice``, its answer
``ow.answer.alice.bob``. The last part is the name of the publishing agent: the permissions of a
server allow each agent to publish only under its own name. Dots in names are written as ``~``,
which no name contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

REPLICAS_MAX: Final = 5
"""Maximum servers that replicate a stream."""
PARCELS: Final = "OW_PARCELS"
ANSWERS: Final = "OW_ANSWERS"
NANOSECONDS: Final = 1_000_000_000
ANSWERS_KEPT_FOR: Final = 7 * 86_400 * NANOSECONDS
"""A sender that is absent longer pushes its parcel again, and learns that it is known."""
PARCELS_KEPT_FOR: Final = 30 * 86_400 * NANOSECONDS
"""A parcel that no process accepts for this long is removed; its sender pushes it again."""
STREAM_MAX_BYTES: Final = 1 << 30
"""Default maximum bytes of each stream on a server's disk."""
CONSUMER_KEPT_FOR: Final = 30 * 86_400 * NANOSECONDS
"""A consumer that no process uses for this long is removed; a listener recreates it."""
CONSUMERS_MAX: Final = 10_000
"""Maximum consumers of a stream: one per agent of parcels, one per sending process of answers."""
ANSWERS_CONSUMER_KEPT_FOR: Final = 60 * NANOSECONDS

STREAMS: Final[dict[str, dict[str, Any]]] = {
    PARCELS: {
        "description": "Parcels that their recipients have not answered yet",
        "subjects": ["ow.parcel.*.*"],
        "retention": "workqueue",
        # A newer parcel replaces the older one of its pair; a full stream accepts none, so that
        # the parcels of others stay.
        "max_msgs_per_subject": 1,
        "discard": "new",
        "max_age": PARCELS_KEPT_FOR,
        "max_bytes": STREAM_MAX_BYTES,
        "max_consumers": CONSUMERS_MAX,
        "consumer_limits": {"inactive_threshold": CONSUMER_KEPT_FOR},
        "storage": "file",
    },
    ANSWERS: {
        "description": "The last answer of each agent to each other agent",
        "subjects": ["ow.answer.*.*"],
        "retention": "limits",
        "max_msgs_per_subject": 1,
        "discard": "old",  # a lost answer costs one more push
        "max_age": ANSWERS_KEPT_FOR,
        "max_bytes": STREAM_MAX_BYTES,
        "max_consumers": CONSUMERS_MAX,
        "consumer_limits": {"inactive_threshold": ANSWERS_CONSUMER_KEPT_FOR},
        "storage": "file",
    },
}
"""
Streams by name, in the form of the server's API.

None has ``allow_direct``: a direct read is answered to any subject that its caller names, with a
message that the caller stored before, so it could pass as another agent's message.
"""


STORED: Final = ("parcel", "answer")
"""Kinds of messages that a stream keeps; answers are to parcels."""
PASSING: Final = ("ping", "pong")
"""Kinds that no stream keeps; pongs are to pings."""
ANY: Final = "*"
"""In place of peers: any name."""
Kind = Literal["parcel", "answer", "ping", "pong"]


def token(name: str) -> str:
    """Return an agent's name as one part of a subject."""
    return name.replace(".", "~")


def name_of(token: str) -> str:
    """Return the name of an agent from its part of a subject."""
    return token.replace("~", ".")


def subject(kind: Kind, recipient: str, sender: str) -> str:
    """Return the subject under which *sender* publishes to *recipient*."""
    return f"ow.{kind}.{token(recipient)}.{token(sender)}"


def subjects_to(kind: Kind, recipient: str) -> str:
    """Return the pattern of the subjects of all senders to *recipient*."""
    return f"ow.{kind}.{token(recipient)}.*"


def inbox_prefix(name: str) -> str:
    """Return the prefix of the subjects at which an agent receives the server's replies."""
    return f"_INBOX_{token(name)}"


def consumer(name: str) -> str:
    """Return the name of the consumer that delivers an agent's parcels."""
    return f"inbox-{token(name)}"


def publisher(subject: str, pattern: str) -> str | None:
    """
    Return the agent that published under *subject*; None if that does not match *pattern*.

    *subject* is the one under which a message was published: a message that a server sends on
    behalf of a user to a subject that this user may not use keeps its own.
    """
    prefix, _, last = subject.rpartition(".")
    return name_of(last) if f"{prefix}.*" == pattern else None


def publishes(name: str, peers: Iterable[str], *, keeper: bool = False) -> list[str]:
    """
    Return the subjects that an agent may publish to.

    The streams keep one message of each kind for each of its *peers*, and none for another name:
    that is its share of them. A *keeper* may also create and examine the streams.
    """
    mine, of_mine = token(name), f"{PARCELS}.{consumer(name)}"
    streams = (f"{verb}.{stream}" for verb in ("CREATE", "INFO") for stream in STREAMS)
    return [
        *(f"ow.{kind}.{token(peer)}.{mine}" for peer in peers for kind in STORED),
        *(f"ow.{kind}.*.{mine}" for kind in PASSING),
        f"$JS.API.CONSUMER.CREATE.{of_mine}.{subjects_to('parcel', name)}",
        f"$JS.API.CONSUMER.INFO.{of_mine}",
        f"$JS.API.CONSUMER.MSG.NEXT.{of_mine}",
        f"$JS.ACK.{of_mine}.>",
        f"$JS.API.CONSUMER.CREATE.{ANSWERS}.*.{subjects_to('answer', name)}",
        *(f"$JS.API.STREAM.{each}" for each in streams if keeper),
    ]


def hears(name: str) -> list[str]:
    """Return the subjects that an agent may subscribe to."""
    return [f"{inbox_prefix(name)}.>", subjects_to("ping", name), subjects_to("pong", name)]


def user(name: str, public_key: str, peers: Iterable[str], *, keeper: bool = False) -> str:
    """Return the entry of an agent in the ``users`` of a server's configuration."""
    subjects = publishes(name, peers, keeper=keeper)
    allowed = "".join(f'\n        "{each}"' for each in subjects)
    heard = ", ".join(f'"{each}"' for each in hears(name))
    return f"""\
    {{ # {name}
      nkey: {public_key}
      permissions {{
        publish: {{ allow: [{allowed}
        ] }}
        subscribe: {{ allow: [{heard}] }}
      }}
    }}
"""
