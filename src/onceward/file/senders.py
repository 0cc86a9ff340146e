"""Write the statement that names each sender of a table once."""

from __future__ import annotations


def senders(table: str) -> str:
    """
    Return a WITH that names each sender of a table or a view.

    An id is unique for each sender: the index on both is asked once for each sender there is.
    """
    return f"""
WITH RECURSIVE senders (name) AS (
    SELECT (SELECT sender FROM {table} WHERE sender > '' ORDER BY sender LIMIT 1)
     UNION ALL
    SELECT (SELECT sender FROM {table} WHERE sender > s.name ORDER BY sender LIMIT 1)
      FROM senders AS s WHERE s.name IS NOT NULL
)
"""  # noqa: S608 - the name of a table or view
