"""Reach agents through NATS JetStream, and prepare its servers; needs ``onceward[nats]``."""

from onceward.transports.network.nats import NatsTransport
from onceward.transports.network.nats_listener import NatsListener
from onceward.transports.network.nats_setup import (
    NatsStream,
    NatsUser,
    examine,
    make_streams,
    make_user,
    user_entries,
)

__all__ = [
    "NatsListener",
    "NatsStream",
    "NatsTransport",
    "NatsUser",
    "examine",
    "make_streams",
    "make_user",
    "user_entries",
]
