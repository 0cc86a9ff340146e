"""
Features, which plug into the way of a message; each folder can be read by itself.

Imports core, file and message.
"""
