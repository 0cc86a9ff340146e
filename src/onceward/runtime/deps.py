"""Hold what every part of one postbox's runtime works with."""

from __future__ import annotations

import random

from onceward.db.database import Database
from onceward.hooks import Hooks
from onceward.model.retry import RetryPolicy
from onceward.model.settings import Settings
from onceward.model.values import dataclass
from onceward.runtime.sender import Sender


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
