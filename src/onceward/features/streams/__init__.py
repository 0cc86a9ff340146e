"""
Store the output of running handlers for readers to follow.

Imports core, file and message; never another feature.
"""
