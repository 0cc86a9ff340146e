"""
Set, list and remove the limits of a file.

Imports core, file and message; never another feature.
"""
