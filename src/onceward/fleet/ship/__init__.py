"""
Ship what changed in agents' files to a log of Parquet objects, and read that log.

Needs the extra ``onceward[ship]`` (pyarrow); nothing else of onceward loads it.

- ``ship.files(paths, to)`` appends to the log what changed since the last time.
- ``ShippedLog(uri)`` reads the log: ``files()`` lists the files that it holds;
  ``batches(table)`` yields rows as Arrow record batches.
- ``prune.files(paths, log)`` deletes from files what it has read back from the log.

Imports the public names, fleet, file and message.
"""

from __future__ import annotations

from onceward.message.extras import needs

with needs("ship", "the shipped log"):
    from onceward.fleet.ship.log import LoggedFile, ShippedLog
    from onceward.fleet.ship.shipper import FileShipped, Pace, files

__all__ = ["FileShipped", "LoggedFile", "Pace", "ShippedLog", "files"]
