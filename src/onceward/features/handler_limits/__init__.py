"""
Limit handlers: calls at once, calls in a span of time, like bodies once.

Imports core, file and message; never another feature.
"""
