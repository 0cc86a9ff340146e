"""
Read agents' files for live views and metrics; nothing here writes, and no writer waits.

Imports the public names, ops, file and message.
"""
