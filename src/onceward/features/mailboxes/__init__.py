"""Mailboxes of a home, and their readers."""
