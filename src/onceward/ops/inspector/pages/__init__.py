"""
Build the pages: one module each, with a function from a request to an answer.

Imports ops, file, message and the public names.
"""
