"""
The way of a message: send, deliver, accept, handle, and what all of them need.

Imports file and message, never a feature.
"""
