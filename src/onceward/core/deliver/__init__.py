"""
Pack parcels for a peer, push them, and settle what the peer answers.

It imports what was sent, the receipts of what was accepted, and the engine; no feature.
"""
