"""
Carry a message on its way: send, deliver, accept, handle, and what all of them need.

Imports file and message; never a feature.
"""
