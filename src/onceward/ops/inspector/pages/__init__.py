"""
Make the pages: one module for each, a function from a request to an answer.

Imports ops, file, message and the public names.
"""
