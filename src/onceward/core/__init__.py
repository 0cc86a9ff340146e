"""
Carry a message from send to deliver, accept, handle and end, with what these stages share.

Imports file and message; never a feature.
"""
