"""Derive the key of each tool call, so that a repeated call is the same message."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from mcp.server.mcpserver import Context

from onceward.message.ids import new_token

CALL_IDS: Final = ("onceward/callId", "claudecode/toolUseId")
"""Names of the id of a call in ``_meta``."""
SCRATCH: Final = "onceward"


def key_of(tool: str, given: str | None, ctx: Context[Any, Any]) -> str:
    """
    Return the key of a call, the same for a repetition.

    It is the *given* one, the id of the call that the client put into ``_meta``, or the request's
    number if the connection has its own session. A call without any of them gets a new key.
    Recipients see the key, so it is a digest.
    """
    name = given or _call_id(ctx) or _request_of_session(ctx) or new_token()
    return "mcp-" + sha256(f"{tool}\0{name}".encode(errors="surrogatepass")).hexdigest()[:40]


def _call_id(ctx: Context[Any, Any]) -> str | None:
    meta: Mapping[str, Any] = ctx.request_context.meta or {}
    found = (meta.get(name) for name in CALL_IDS)
    return next((text for text in found if isinstance(text, str) and text), None)


def _request_of_session(ctx: Context[Any, Any]) -> str | None:
    """Return a name of a request that is unique across connections; None without a session."""
    connection = ctx.session._connection
    if connection.session_id is None and not connection.has_standalone_channel:
        return None  # each request has its own connection: numbers repeat between clients
    token = connection.state.setdefault(SCRATCH, new_token())
    return f"{token}\0{ctx.request_id}"
