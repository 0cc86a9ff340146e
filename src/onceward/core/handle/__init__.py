"""
Lease messages of the inbox, call their handlers, and settle all in one commit.

Imports core/run, core/send, core/end, core/rows, file and message.
"""
