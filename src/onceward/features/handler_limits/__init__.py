"""
Limit handlers: concurrent calls, rate of calls, repeated bodies.

Imports core, file and message; never another feature.
"""
