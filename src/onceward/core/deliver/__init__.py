"""
Pack parcels for a peer, push them, and settle what the peer answers.

Imports core, file and message.
"""
