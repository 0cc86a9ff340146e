"""``onceward mcp``: give a model an agent's messages as tools."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from onceward.message.extras import needs
from onceward.message.hosts import is_loopback, place, url_of
from onceward.ops.cli.durations import MaybeRate, SpanOption
from onceward.ops.cli.exit_codes import DONE, SIGNAL, Failed, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note
from onceward.ops.cli.target import WHERE, Where, existing
from onceward.ops.cli.tokens import given_token

if TYPE_CHECKING:
    from onceward.ops.mcp.options import McpOptions

TOKEN: Final = "ONCEWARD_MCP_TOKEN"  # noqa: S105 - the name of a variable
ReadOnly = Annotated[bool, Quiet, said("Offer only read-only tools.")]
Peers = Annotated[str | None, said("Allow sending only to these agents: a,b.")]
Sends = Annotated[MaybeRate, said("Maximum rate of sent messages: 30/m.", name="--limit")]
Http = Annotated[str | None, said("Serve streamable HTTP at HOST:PORT or PORT instead of stdio.")]
Lease = Annotated[SpanOption, said("How long a claimed message is reserved for a model.")]


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

    A client starts it and uses stdin and stdout; with --http several clients share one server at
    /mcp. It delivers sent messages; it runs no handlers. At any address but a loopback one
    ONCEWARD_MCP_TOKEN must hold the bearer token of the clients; at a loopback address the token is
    required if it is set. The end of input, or an interrupt or terminate signal, ends the program
    (exit codes 130, 143).

    Example: onceward mcp --agent alice --peers billing,audit --limit 30/m

    Example: onceward mcp alice.db --http 127.0.0.1:8425 --read-only
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
    """Listen, print the address, and serve until a signal."""
    from functools import partial  # noqa: PLC0415 - only here

    import anyio  # noqa: PLC0415 - an extra

    from onceward.ops.mcp.serving import serve_http  # noqa: PLC0415 - an extra
    from onceward.serving import bound  # noqa: PLC0415 - an extra

    host, port = place(address)
    token = given_token(TOKEN)
    if token is None and not is_loopback(host):
        raise Usage(f"{host} can be reached from other machines: put a token into {TOKEN}")
    try:
        listening = bound(host, port)
    except OSError as error:
        msg = f"cannot listen at {host} port {port}: {error.strerror or error}: give another --http"
        raise Failed(msg) from error
    url = url_of(host, listening.getsockname()[1], "/mcp")
    note(f"{path.stem} at {url}; interrupt to stop")
    number = anyio.run(partial(serve_http, path, options, listening, token=token, host=host))
    if where.json:
        document({"url": url, "signal": signal.Signals(number).name if number else None})
    return SIGNAL + number if number else DONE
