"""
Store a parcel once, and report the outcomes of its messages to the sender.

Imports core/run, core/send, core/end, core/rows, file and message; features plug in: ``Arrives``.
"""
