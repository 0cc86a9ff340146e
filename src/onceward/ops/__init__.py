"""
The command, the inspector, metrics and MCP.

Imports what users import.
"""
