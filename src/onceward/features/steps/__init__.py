"""
Keep the results of a handler's steps, so that its next call continues after them.

Imports core, file and message; never another feature.
"""
