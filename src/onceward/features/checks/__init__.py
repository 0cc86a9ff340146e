"""
Check the invariants of a file, and repair violations.

Imports core, file and message; never another feature.
"""
