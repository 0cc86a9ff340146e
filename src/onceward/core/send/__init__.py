"""
Compose a message, and store it in the transaction of its sender.

Imports core, file and message.
"""
