"""
Read agents' files for live views and metrics, without writing or delaying writers.

Imports the public names, ops, file and message.
"""
