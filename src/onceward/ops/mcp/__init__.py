"""
An MCP server: an agent's file as tools of a model.

``server(box)`` makes one of an open ``AsyncPostbox``; ``onceward mcp`` runs it.
"""

from onceward.ops.mcp.options import McpOptions
from onceward.ops.mcp.server import server

__all__ = ["McpOptions", "server"]
