"""
Offer an agent's file as tools of a model: an MCP server.

``server(box)`` creates one for an open ``AsyncPostbox``; ``onceward mcp`` runs it.

Imports the public names, ops, file and message.
"""

from onceward.ops.mcp.options import McpOptions
from onceward.ops.mcp.server import server

__all__ = ["McpOptions", "server"]
