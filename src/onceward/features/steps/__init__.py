"""
Keep the results of a handler's steps, so that the next call of the handler goes on after them.

Imports core, file and message; never another feature.
"""
