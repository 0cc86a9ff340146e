"""Make the tables of an integration with its first use, so that others' files do without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.errors import SchemaTooNew
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction

LEDGER: Final = """
CREATE TABLE IF NOT EXISTS _onceward_integrations (
    name    TEXT    PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""
LEDGER_THERE: Final = "SELECT 1 FROM sqlite_schema WHERE name = '_onceward_integrations'"
VERSION: Final = "SELECT version FROM _onceward_integrations WHERE name = ?"
RECORD: Final = "INSERT INTO _onceward_integrations (name, version) VALUES (?, ?)"


@dataclass(frozen=True, slots=True)
class IntegrationTables:
    """The tables of an integration: private ones ``_onceward_*`` and public views."""

    name: str
    version: int
    sql: str

    def exist(self, db: Database) -> bool:
        """
        Return whether the file has them.

        Raises:
            SchemaTooNew: a newer version of the integration made them.

        """
        if not db.read(LEDGER_THERE):
            return False
        return self._is_known(db.read(VERSION, (self.name,)))

    def make(self, tx: StoreTransaction) -> None:
        """Make them, unless the file has them; raises SchemaTooNew as ``exist`` does."""
        tx.run(LEDGER)
        if not self._is_known(tx.rows(VERSION, (self.name,))):
            tx.rows(self.sql)
            tx.run(RECORD, (self.name, self.version))

    def _is_known(self, found: list[tuple[int]]) -> bool:
        if found and found[0][0] > self.version:
            raise SchemaTooNew(
                f"the tables of {self.name} have version {found[0][0]}, this version knows"
                f" {self.version}: upgrade onceward"
            )
        return bool(found)
