"""
Own the tables: the statements that write their rows, and the reads of the hot path.

Imports file and message.
"""
