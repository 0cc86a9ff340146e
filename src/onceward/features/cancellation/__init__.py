"""
Cancel messages here, on their way, or at their recipient.

Imports core, file and message; never another feature.
"""
