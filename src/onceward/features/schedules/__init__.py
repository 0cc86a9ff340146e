"""
Send messages again and again, at dates.

Imports core, file and message; never another feature.
"""
