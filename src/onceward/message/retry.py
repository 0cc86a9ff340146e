"""
Decide how long to wait before the next attempt, and when to give up.

tenacity's ``wait_*`` and ``stop_*`` objects are used as pure functions of the attempt number. This
module never sleeps: the wait is a time in a row, so it survives the process. tenacity is imported
when a postbox is opened, not by a module that only declares agents: it takes a twentieth of the
import time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.times import Span, seconds

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base


@cache
def _retrying() -> Retrying:
    from tenacity import Retrying  # noqa: PLC0415 - see above

    return Retrying()


def _state(attempt: int) -> RetryCallState:
    from tenacity import RetryCallState  # noqa: PLC0415 - see above

    state = RetryCallState(_retrying(), None, (), {})
    state.attempt_number = attempt
    return state


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    When to retry: a tenacity wait, a tenacity stop and a share of jitter.

    ``attempt`` counts from 1: after the k-th failure the next attempt waits ``delay(k)``, unless
    ``exhausted(k)``. No delay is longer than ``cap``, jitter included. ``open_for`` is how long an
    open circuit breaker stops attempts, if that is longer than the delay; None: as in the settings.
    The presets have 0, so only their own delays apply.
    """

    wait: wait_base
    stop: stop_base
    jitter: float = 0.0
    cap: Span | None = None
    open_for: Span | None = None

    def __post_init__(self) -> None:
        """Refuse invalid durations, and a wait or stop that cannot be called."""
        if not (callable(self.wait) and callable(self.stop)):
            msg = "wait and stop must be objects of tenacity, as in RetryPolicy(wait_fixed(1), …)"
            raise InvalidArgument(msg)
        for name in ("cap", "open_for"):
            if getattr(self, name) is not None:
                seconds(name, getattr(self, name))

    def delay(self, attempt: int, rng: random.Random) -> Millis:
        """Return the wait after the *attempt*-th failure, in milliseconds."""
        varied = self.wait(_state(attempt)) * (1 + rng.uniform(-self.jitter, self.jitter))
        return round(1000 * (varied if self.cap is None else min(varied, seconds("cap", self.cap))))

    def exhausted(self, attempt: int) -> bool:
        """Return whether the *attempt*-th failure was the last allowed one."""
        return bool(self.stop(_state(attempt)))

    @classmethod
    def ten_retries(cls) -> Self:
        """Return 10 retries after 1, 2, 4, 8, 16, 32 and then 60 seconds each: 303 in all."""
        from tenacity import stop_after_attempt, wait_chain, wait_fixed  # noqa: PLC0415 - see above

        return cls(
            wait_chain(*map(wait_fixed, (1, 2, 4, 8, 16, 32, 60))),
            stop_after_attempt(1 + 10),
            open_for=0.0,
        )

    @classmethod
    def three_retries(cls, *, ack_timeout: Span = 0.0) -> Self:
        """Return 3 retries after 1, 2 and 4 seconds, each plus *ack_timeout*."""
        from tenacity import stop_after_attempt, wait_exponential, wait_fixed  # noqa: PLC0415 - see above

        return cls(
            wait_exponential(multiplier=1) + wait_fixed(seconds("ack_timeout", ack_timeout)),
            stop_after_attempt(1 + 3),
            open_for=0.0,
        )


def exponential(
    first: float, retries: int, *, cap: float | None = None, jitter: float = 0.0
) -> RetryPolicy:
    """Return *retries* retries that wait *first* seconds, then twice as long, up to *cap*."""
    from tenacity import stop_after_attempt, wait_exponential  # noqa: PLC0415 - see above

    wait = (
        wait_exponential(multiplier=first)
        if cap is None
        else wait_exponential(multiplier=first, max=cap)
    )
    return RetryPolicy(wait, stop_after_attempt(1 + retries), jitter, cap)
