"""
Lease messages of the inbox, call their handlers, and settle all in one commit.

Imports core, file and message.
"""
