"""Prune, expire, checkpoint; health, dead letters, and a file that changes hands."""
