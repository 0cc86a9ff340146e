"""
Reach other machines: HTTP, polling, NATS, keys of homes and peers.

Imports core, file and message.
"""
