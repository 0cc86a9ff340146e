"""Keep rows that can never be sent in files of their own, each with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onceward.fleet.durable import replace_file


class BadRecord(NamedTuple):
    """A row, and the error that its sending raised."""

    row: Mapping[str, Any]
    error: Exception


def store(folder: Path | None, path: str, bad: Sequence[BadRecord]) -> None:
    """
    Write the bad rows of one agent's file in one batch, in place of those of an earlier try.

    Called before the file's transaction commits: a process that dies in between is repeated, and
    the file is written again. *folder* is the batch's own and has one file for each agent's, with a
    line of JSON for each row: ``path``, ``error``, ``reason`` and ``record``. None: keep none.
    """
    if folder is None:
        return
    target = folder / f"{hashlib.blake2b(path.encode(), digest_size=16).hexdigest()}.json"
    if bad:
        replace_file(target, "".join(f"{_line(path, one)}\n" for one in bad).encode())
    else:
        target.unlink(missing_ok=True)


def _line(path: str, one: BadRecord) -> str:
    told = {"path": path, "error": type(one.error).__name__, "reason": str(one.error)}
    return json.dumps(told | {"record": dict(one.row)}, default=_spelt, ensure_ascii=False)


def _spelt(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
