"""
Hold the features, which plug into the way of a message; each is one folder.

Imports core, file and message; never another feature.
"""
