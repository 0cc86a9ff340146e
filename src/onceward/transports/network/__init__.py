"""
Other machines: HTTP, polling, NATS, keys.

Imports transports and core.
"""
