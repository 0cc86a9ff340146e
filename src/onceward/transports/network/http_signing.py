"""Sign and verify requests and answers over HTTP, in the headers of Standard Webhooks."""

from __future__ import annotations

import re
import secrets as randomness
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from onceward.message.names import is_agent_name
from onceward.transports.network.homes import KeyClaim
from onceward.transports.network.keys import Secret, sign_all, verify

FROM: Final = "onceward-from"
"""Header that names the sending agent; it selects the secret, and the body must match."""
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
HEAD: Final = "onceward-head"
"""Header that signs a request's head, which is verified before the body is read."""
NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
SECONDS: Final = re.compile(r"[0-9]{1,12}")
SIGNATURE_MAX: Final = 1024
WINDOW: Final = 300
"""Maximum difference of two machines' clocks in seconds."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The signing headers of a request or an answer."""

    sender: str
    nonce: str
    timestamp: int
    signature: str
    head: str = ""
    claim: KeyClaim | None = None
    """The keys that it names if the home of the sender signed it."""

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> Self | None:
        """Return the headers if all are present and well-formed, else None."""
        sender, nonce = headers.get(FROM, ""), headers.get(ID, "")
        seconds, signature = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
        head = headers.get(HEAD, "")
        formed = (
            is_agent_name(sender)
            and NONCE.fullmatch(nonce)
            and SECONDS.fullmatch(seconds)
            and 0 < len(signature) <= SIGNATURE_MAX
            and len(head) <= SIGNATURE_MAX
        )
        if not formed:
            return None
        return cls(sender, nonce, int(seconds), signature, head, KeyClaim.read(headers))

    def proves_head(self, secrets: Sequence[Secret], recipient: str, verb: str) -> bool:
        """Return whether one of *secrets* signed this head, for that agent and verb."""
        text = _head_text(self.sender, recipient, verb)
        return verify(secrets, self.nonce, self.timestamp, text, self.head)

    def proves(self, secrets: Sequence[Secret], body: bytes) -> bool:
        """Return whether *body* was signed by one of *secrets*, with this nonce and time."""
        return verify(secrets, self.nonce, self.timestamp, body, self.signature)


def new_nonce() -> str:
    """Return an unguessable name of one exchange."""
    return randomness.token_hex(16)


def signed_headers(
    secrets: Sequence[Secret], sender: str, nonce: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers that sign *body*."""
    found = {
        FROM: sender,
        ID: nonce,
        TIMESTAMP: str(timestamp),
        SIGNATURE: sign_all(secrets, nonce, timestamp, body),
    }
    for each in secrets:
        if not isinstance(each, bytes):
            found |= each.headers()
    return found


def head_signature(
    secrets: Sequence[Secret], asked: tuple[str, str, str], nonce: str, timestamp: int
) -> dict[str, str]:
    """Return the header that signs the head of a request: its sender, recipient and verb."""
    return {HEAD: sign_all(secrets, nonce, timestamp, _head_text(*asked))}


def _head_text(sender: str, recipient: str, verb: str) -> bytes:
    """Return the signed text of a head; no body of ours begins like it."""
    return f"onceward-head {verb} {sender} {recipient}".encode()
