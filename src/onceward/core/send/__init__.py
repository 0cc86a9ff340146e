"""
Compose a message, and store it in the transaction of its sender.

Imports core/end, core/rows, file and message.
"""
