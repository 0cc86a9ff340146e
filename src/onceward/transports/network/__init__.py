"""
Reach other machines: HTTP, polling, NATS, keys.

Imports core, file and message.
"""
