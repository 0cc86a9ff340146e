"""
Store a parcel once, and tell its sender what became of it.

It imports lanes, requests, limits and peers; features plug in as data: see ``Storing``.
"""
