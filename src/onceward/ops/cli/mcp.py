"""``onceward mcp``: give a model an agent's messages as tools."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from onceward.message.extras import needs
from onceward.ops.cli.durations import MaybeRate, SpanOption
from onceward.ops.cli.exit_codes import DONE, SIGNAL, Failed, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note
from onceward.ops.cli.target import Where, existing

if TYPE_CHECKING:
    from onceward.ops.mcp.options import McpOptions

WHERE: Final = Where()
TOKEN: Final = "ONCEWARD_MCP_TOKEN"  # noqa: S105 - the name of a variable
HOST: Final = "127.0.0.1"
SHORTEST: Final = 16
ReadOnly = Annotated[bool, Quiet, said("Offer only the tools that change nothing.")]
Peers = Annotated[str | None, said("The only agents that may be written to: a,b.")]
Sends = Annotated[MaybeRate, said("Most messages that are sent: 30/m.", name="--limit")]
Http = Annotated[str | None, said("Serve streamable HTTP at HOST:PORT or PORT, not stdio.")]
Lease = Annotated[SpanOption, said("How long a claimed message is kept for a model.")]


def mcp(
    *,
    http: Http = None,
    read_only: ReadOnly = False,
    peers: Peers = None,
    limit: Sends = None,
    lease: Lease = 300.0,  # type: ignore[assignment]  # a span is seconds
    where: Where = WHERE,
) -> int:
    """
    Serve an agent's messages to a model, as an MCP server over stdio or HTTP.

    A client starts it and speaks over stdin and stdout; with --http several clients share one
    server at /mcp. Messages that were sent leave from here; no handlers run. At any address but a
    loopback one ONCEWARD_MCP_TOKEN must hold the token that clients give as a bearer token; at a
    loopback address it is asked for where it is set. The end of input ends the program, as do an
    interrupt or terminate signal (exit codes 130, 143).
    """
    with needs("mcp", "mcp"):
        import anyio  # noqa: PLC0415 - an extra

        from onceward.ops.mcp.options import McpOptions  # noqa: PLC0415 - an extra
        from onceward.ops.mcp.serving import serve_stdio  # noqa: PLC0415 - an extra
    path = existing(where.path())
    options = McpOptions(
        read_only=read_only,
        peers=None if peers is None else frozenset(filter(None, map(str.strip, peers.split(",")))),
        limit=limit,
        lease=float(lease),
    )
    if http is not None:
        return _over_http(path, options, http, where)
    number = anyio.run(serve_stdio, path, options)
    return SIGNAL + number if number else DONE


def _over_http(path: Path, options: McpOptions, address: str, where: Where) -> int:
    """Listen, say where, and serve until a signal."""
    from functools import partial  # noqa: PLC0415 - only here

    import anyio  # noqa: PLC0415 - an extra

    from onceward.ops.mcp.addresses import bound  # noqa: PLC0415 - an extra
    from onceward.ops.mcp.serving import serve_http  # noqa: PLC0415 - an extra

    host, port = _address(address)
    token = _token(host)
    try:
        listening = bound(host, port)
    except OSError as error:
        msg = f"cannot listen at {host} port {port}: {error.strerror or error}: give another --http"
        raise Failed(msg) from error
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/mcp"
    note(f"{path.stem} at {url}; interrupt to stop")
    number = anyio.run(partial(serve_http, path, options, listening, token=token, host=host))
    if where.json:
        document({"url": url, "signal": signal.Signals(number).name if number else None})
    return SIGNAL + number if number else DONE


def _address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - the largest port
        msg = f"--http {text}: write HOST:PORT or PORT, as in 127.0.0.1:8425"
        raise Usage(msg)
    return host.strip("[]") or HOST, int(port)


def _token(host: str) -> str | None:
    """Return the token that clients must give; raise Usage where one is needed and none is set."""
    from onceward.ops.mcp.addresses import is_loopback  # noqa: PLC0415 - an extra

    token = os.environ.get(TOKEN)
    if token is None:
        if is_loopback(host):
            return None
        msg = f"{host} is reached from other machines: put a token into {TOKEN}"
        raise Usage(msg)
    if len(token) < SHORTEST or not token.isascii():
        msg = f"{TOKEN} must have {SHORTEST} ASCII characters or more"
        raise Usage(msg)
    return token
