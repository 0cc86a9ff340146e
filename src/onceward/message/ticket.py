"""Define the ticket of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticket:
    """A reply that is awaited; keep its ``id`` to ask again after a restart."""

    id: str
    recipient: str
