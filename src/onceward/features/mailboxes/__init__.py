"""
Keep the mailboxes of a home, and their readers.

Imports core, file and message; never another feature.
"""
