"""Exactly-once mail between agents, in one SQLite file each."""

from onceward import errors
from onceward.agent import Agent
from onceward.aio import AsyncPostbox, AsyncSession
from onceward.awaitable import AsyncMessage, AsyncTransaction
from onceward.context import AsyncContext, Context
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.frame import Frame
from onceward.health import Health
from onceward.message import Message
from onceward.parcel import Answer, Parcel, Receipt
from onceward.payload import Msg
from onceward.policy import RetryPolicy
from onceward.postbox import Postbox
from onceward.session import Session
from onceward.settings import Settings
from onceward.tickets import Ticket
from onceward.transaction import Transaction
from onceward.transport import Features, Transport
from onceward.views import Page

__all__ = [
    "Agent",
    "Answer",
    "AsyncContext",
    "AsyncMessage",
    "AsyncPostbox",
    "AsyncSession",
    "AsyncTransaction",
    "Context",
    "Drop",
    "Features",
    "Frame",
    "Health",
    "Message",
    "Msg",
    "OncewardError",
    "OutcomeUnknown",
    "Page",
    "Parcel",
    "Postbox",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Session",
    "Settings",
    "Ticket",
    "Transaction",
    "Transport",
    "errors",
]
