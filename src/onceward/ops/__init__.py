"""
Serve operators: the command, the inspector, live views, metrics, MCP.

Imports the public names, fleet, testing, file and message.
"""
