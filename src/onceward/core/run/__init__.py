"""
Run the threads and emit the events that every stage of a message needs.

Imports core/send, core/end, core/rows, file and message.
"""
