"""Select the files to show, and name each for addresses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from onceward.file.directory import directory_path
from onceward.message.names import DIRECTORY

AGENTS: Final = "agents"
"""Folder of a home that may contain agents' files."""
SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")


class Targets:
    """Agents' files by key: the file's name, with a number if two are equal."""

    def __init__(self, places: Iterable[str | os.PathLike[str]]) -> None:
        self._places = [Path(os.path.abspath(place)) for place in places]  # noqa: PTH100 - keeps links
        self._keys: dict[Path, str] = {}
        self._taken: set[str] = set()

    @property
    def title(self) -> str:
        """Title of the targets: a folder's or a file's name, or their number."""
        if len(self._places) == 1:
            return self._places[0].name or str(self._places[0])
        return f"{len(self._places)} places"

    @property
    def home(self) -> Path:
        """The folder of the first place."""
        first = self._places[0]
        return first if first.is_dir() else first.parent

    def directories(self) -> list[Path]:
        """Return the distinct directories of the homes."""
        found = (path for place in self._places for path in _directories(place))
        return [path for path in dict.fromkeys(found) if path.exists()]

    def files(self) -> dict[str, Path]:
        """Return the existing files by key; a file keeps its key."""
        return {self._key(path): path for place in self._places for path in _files(place)}

    def _key(self, path: Path) -> str:
        if path not in self._keys:
            stem, number = path.name.removesuffix(".db"), 1
            key = stem
            while key in self._taken:
                number += 1
                key = f"{stem}~{number}"
            self._taken.add(key)
            self._keys[path] = key
        return self._keys[path]


def _directories(place: Path) -> tuple[Path, ...]:
    """Return where the directory of a place may be; that of a folder ``agents`` is above it."""
    if not place.is_dir():
        return (directory_path(place),)
    return place / DIRECTORY, directory_path(place / DIRECTORY)


def _files(place: Path) -> list[Path]:
    """Return a file, or the agents' files of a folder, without the directory of a home."""
    if not place.is_dir():
        return [place]
    found = [entry for folder in (place, place / AGENTS) for entry in _entries(folder)]
    return sorted(path for path in found if path.name != DIRECTORY)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                folder / entry.name
                for entry in entries
                if entry.name.endswith(SUFFIXES) and entry.is_file()
            ]
    except OSError:
        return []
