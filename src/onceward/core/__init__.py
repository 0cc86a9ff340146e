"""
Carry a message from send to deliver, accept and handle, with what these stages share.

Imports file and message; never a feature.
"""
