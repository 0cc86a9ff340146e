"""
Give handlers several messages at once: one claim, one call, one commit.

Imports core, file and message; never another feature.
"""
