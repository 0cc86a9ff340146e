"""Hands: what callers and handlers hold, from a draft to a message."""
