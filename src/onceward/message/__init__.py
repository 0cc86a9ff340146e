"""
Define values: frames, parcels, states, settings, clocks, ids; no I/O.

Imports no other folder.
"""
