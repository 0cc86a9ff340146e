"""
Keep the channels of a home: members, posts, their order and history.

Imports core, file and message; never another feature.
"""
