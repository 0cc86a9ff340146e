"""
Hold the features, one folder each, which plug into the core as data.

Imports core, file and message; never another feature.
"""
