"""
Collect the messages of a session into runs, in five modes.

Imports core, file and message; never another feature.
"""
