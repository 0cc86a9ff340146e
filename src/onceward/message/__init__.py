"""
Values: messages, parcels, states, settings, clocks; no I/O.

Imports errors only.
"""
