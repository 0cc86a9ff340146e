"""
Pack parcels for a peer, push them, and settle what the peer answers.

Imports core/run, core/send, core/end, core/rows, file and message.
"""
