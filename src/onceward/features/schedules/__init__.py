"""
Send messages repeatedly, at dates.

Imports core, file and message; never another feature.
"""
