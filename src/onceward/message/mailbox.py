"""Define a mailbox as the directory of a home lists it."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.message.clock import Millis


@dataclass(frozen=True, slots=True)
class MailboxInfo:
    """A mailbox in the home's directory."""

    public: bool
    name: str
    """The name of a public mailbox; for a private one its id's hash, which gives no access."""
    owner: str
    """Agent whose file stores its messages."""
    ttl: Millis | None
    created_at: Millis
    expires_at: Millis | None
    description: str
    newest_per_key: bool = False
    """Whether a newer message replaces an older one of the same ordering key."""

    def __post_init__(self) -> None:
        """Make flags of SQLite's numbers."""
        for flag in ("public", "newest_per_key"):
            object.__setattr__(self, flag, bool(getattr(self, flag)))

    @property
    def key(self) -> str:
        """Its name in frames and rows; no public name equals a private mailbox's key."""
        return self.name if self.public else f"~{self.name}"
