"""
Store a parcel once, and report the outcomes of its messages to the sender.

Imports core, file and message; features plug in as data: see ``Storing``.
"""
