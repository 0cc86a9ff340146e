"""
Keep what handlers put out while they run, and let readers follow it.

Imports core, file and message; never another feature.
"""
