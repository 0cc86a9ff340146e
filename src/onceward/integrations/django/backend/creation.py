"""Create, copy and remove the databases of tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from django.db.backends.sqlite3 import creation

from onceward.integrations.django import postboxes

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a new folder is made in it
IN_TESTS: Final = {"start": False, "durability": "fast"}
"""Options of a postbox in tests: no thread of its own competes with the test's transaction."""
_folders: Final = dict[str, str]()
"""By alias: the folder of the test database of this process."""


class DatabaseCreation(creation.DatabaseCreation):
    """
    Keeps test databases in a folder of their own, in memory where the system has it.

    An agent's file has a name, so a test database is one, too; each thread of a test can connect.
    """

    @staticmethod
    def is_in_memory_db(database_name: object) -> bool:
        """Return False: there is always a file."""
        del database_name
        return False

    def _get_test_db_name(self) -> str:
        given = self.connection.settings_dict["TEST"]["NAME"]
        if given and given != ":memory:":
            return str(given)
        alias = self.connection.alias
        if alias not in _folders:
            where = MEMORY if MEMORY.is_dir() and "TMPDIR" not in os.environ else None
            _folders[alias] = tempfile.mkdtemp(prefix="onceward-test-", dir=where)
        return str(Path(_folders[alias]) / f"{postboxes.agent_name(self.connection)}.db")

    def _create_test_db(self, verbosity: int, autoclobber: bool, keepdb: bool = False) -> str:
        settings: dict[str, Any] = self.connection.settings_dict
        settings["OPTIONS"] = {**settings["OPTIONS"], **IN_TESTS}
        name = self._get_test_db_name()
        if self.connection.alias not in _folders:  # the program chose the file, which may exist
            super()._create_test_db(verbosity, autoclobber, keepdb)
        if not keepdb:
            _remove(name)
        return name

    def get_test_db_clone_settings(self, suffix: str) -> dict[str, Any]:
        """Return the settings of a copy: it has a folder of its own, as agents of one name need."""
        settings = self.connection.settings_dict
        name = Path(settings["NAME"])
        return {**settings, "NAME": str(name.parent / f"copy-{suffix}" / name.name)}

    def _clone_test_db(self, suffix: str, verbosity: int, keepdb: bool = False) -> None:
        del verbosity
        target = Path(self.get_test_db_clone_settings(suffix)["NAME"])
        if keepdb and target.exists():
            return
        _remove(str(target))
        target.parent.mkdir(exist_ok=True)
        self.connection.close()
        postboxes.close_one(self.connection.settings_dict["NAME"])  # all is in the file itself
        shutil.copy(self.connection.settings_dict["NAME"], target)

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        del verbosity
        _remove(test_database_name)
        folder = _folders.get(self.connection.alias)
        if folder is not None and Path(test_database_name).parent == Path(folder):
            shutil.rmtree(_folders.pop(self.connection.alias), ignore_errors=True)

    def setup_worker_connection(self, _worker_id: int) -> None:
        """Use the copy of a process of the test runner."""
        settings = self.get_test_db_clone_settings(str(_worker_id))
        self.connection.settings_dict.update(settings)
        self.connection.close()


def _remove(name: str) -> None:
    """Remove an agent's file and what SQLite and the postbox keep beside it."""
    postboxes.close_one(name)
    path = Path(name)
    for each in path.parent.glob(f"{path.name}*"):
        if each.is_file():
            each.unlink()
