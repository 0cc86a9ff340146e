"""
Keep one SQLite file: connections, transactions, group commit, notifications, checks.

Imports message.
"""
