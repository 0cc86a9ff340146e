"""
Ask an agent's file: one catalogue of questions, on its public views only.

The command, top, the inspector, MCP and the metrics use it, so that one word has one number
everywhere. A question is a function that takes an object that runs statements, and returns values.

Imports file and message.
"""
