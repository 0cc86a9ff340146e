"""
Check the invariants of a file, and repair what breaks them.

Imports core, file and message; never another feature.
"""
