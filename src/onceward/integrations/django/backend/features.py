"""Tell Django what the database can do."""

from __future__ import annotations

from django.db.backends.sqlite3 import features


class DatabaseFeatures(features.DatabaseFeatures):
    """Those of SQLite in a file that all threads share."""

    autocommits_when_autocommit_is_off = False
    atomic_transactions = True
    supports_transactions = True
    test_db_allows_multiple_connections = True
    can_clone_databases = True
