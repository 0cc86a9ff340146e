"""Hold what every part of one postbox's runtime works with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from onceward.core.send.sender import Sender
from onceward.file.database import Database
from onceward.hooks import Hooks
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDeps:
    """The dependencies that consumers, workers and runs share."""

    db: Database
    """The file that is read and settled: the agent's own, or the one that keeps a mailbox."""
    settings: Settings
    hooks: Hooks
    sender: Sender
    """Writes into the agent's own outbox."""
    rng: random.Random
    """Source of the jitter of retries."""
    policy: RetryPolicy
    """Retries of messages that a handler or a reader failed."""
