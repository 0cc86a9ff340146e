"""
Store a parcel once, and report the outcomes of its messages to the sender.

Imports core/run, core/send, core/rows, file and message; features plug in as data: see ``Storing``.
"""
