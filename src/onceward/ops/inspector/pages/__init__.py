"""
Make the pages: one module for each, a function from a request to an answer.

Imports ops, message and the public names.
"""
