"""The CHECKs of a fresh file and a fresh directory against the names that the code knows."""

import re
from pathlib import Path
from typing import get_args

from onceward import Postbox
from onceward.file.directory import DirectoryHandle
from onceward.message import vocabulary

CHECK = re.compile(r"CHECK \((?P<column>\w+) IN \((?P<names>'[^)]*')\)")
KNOWN: dict[str, set[tuple[str, ...]]] = {
    "aborted": {vocabulary.ABORTED},
    "breaker": {get_args(vocabulary.BreakerState)},
    "missed": {vocabulary.MISSED},
    "mode": {vocabulary.QUEUE_MODES, get_args(vocabulary.PauseMode)},
    "overflow": {vocabulary.OVERFLOWS, vocabulary.QUEUE_OVERFLOWS},
    "role": {vocabulary.CHANNEL_ROLES},
    "scope": {vocabulary.LIMIT_SCOPES},
    "state": {
        get_args(vocabulary.ChannelState),
        get_args(vocabulary.RequestState),
        get_args(vocabulary.RunState),
    },
    "type": {get_args(vocabulary.ChannelType)},
}
"""By column: the lists that its CHECKs may hold, each of which stands in one."""


def test_the_schema_knows_the_same_names(tmp_path: Path) -> None:
    """A name that only the code or only the schema knows would be refused, or never be used."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        home = DirectoryHandle(box._db, box._settings)
        sql = "SELECT sql FROM sqlite_schema WHERE type = 'table'"
        tables = [*box._db.read(sql), *home.directory.read(sql)]
        home.close()

    found: dict[str, set[tuple[str, ...]]] = {column: set() for column in KNOWN}
    for (text,) in tables:
        for column, names in CHECK.findall(text):
            if column in found:
                found[column].add(tuple(re.findall(r"'(\w+)'", names)))

    assert KNOWN == found


def test_a_queue_has_no_policy_of_its_own_name() -> None:
    """What a full session queue does is called as what a limit does."""
    assert set() == set(vocabulary.QUEUE_OVERFLOWS) - set(vocabulary.OVERFLOWS)
