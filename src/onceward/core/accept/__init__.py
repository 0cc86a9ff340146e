"""
Store a parcel once, and tell its sender what became of it.

Imports core, file and message; features plug in as data: see ``Storing``.
"""
