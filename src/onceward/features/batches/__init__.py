"""Handlers that take several messages at once: one claim, one call, one commit."""
