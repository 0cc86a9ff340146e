"""
Read each session by one cursor, which is the ack.

Imports core, file and message; never another feature.
"""
