"""
One SQLite file: connection, transactions, group commit, notifications, checks.

Imports message.
"""
