"""Copy what a shipped log says of messages into a workspace, as its files themselves would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import apsw

from onceward.fleet.coverage import READ, Reading
from onceward.fleet.evidence import COLUMNS, VIEWS, expression, number_of, where

NAME: Final = re.compile(r'"(\w+)"')
RAW: Final = "CREATE TEMP TABLE raw_{box} ({names})"
CLEAR: Final = "DELETE FROM temp.raw_{box}"
KEEP: Final = "INSERT INTO temp.raw_{box} VALUES ({marks})"
ADD: Final = """
INSERT INTO temp.evidence ({names}, file) SELECT {columns}, ? FROM temp.raw_{box} WHERE {condition}
"""


def load_log(con: apsw.Connection, uri: str, beside: Sequence[Reading] = ()) -> list[Reading]:
    """
    Add the evidence of all files that were shipped to the log at *uri*; return its files.

    Rows that a file has pruned since it was shipped count; those of a past that a restored file
    has overwritten do not. A file whose log is not level with it yet counts as unread, and so does
    the log of a file that was read *beside* it and was restored since.

    Raises:
        MissingExtra, NoLog, LogDamaged: see each; nothing is judged by a damaged log.

    """
    from onceward.fleet import ship  # noqa: PLC0415 - an extra
    from onceward.fleet.ship.lineage import goes_on  # noqa: PLC0415 - as above

    log = ship.ShippedLog(uri)
    for box in VIEWS:
        con.execute(RAW.format(box=box, names=", ".join(_names(box))))
    readings = []
    for file in log.files():
        path = f"{uri}#{file.file_id}"
        number = number_of(file.file_id)
        copies = [one.path for one in beside if one.state == READ and one.file == number]
        if not file.complete:
            readings.append(Reading(path, "changing", "its log is not level with the file yet"))
            continue
        if copies and not any(goes_on(each, file.living) for each in copies):
            readings.append(Reading(path, "changing", "its file was restored since: ship it first"))
            continue
        for box in VIEWS:
            for batch in log.batches(box, columns=_names(box), files=[file], abandoned=False):
                _keep(con, box, batch)
            _add(con, box, number)
        horizons: dict[str, str] = {}
        for epoch in file.living:
            for sender, horizon in epoch.horizons.items():
                horizons[sender] = max(horizon, horizons.get(sender, ""))
        pruned = (epoch.outbox_pruned_at for epoch in file.living)
        readings.append(
            Reading(
                path,
                READ,
                agent=file.agent,
                file=number,
                pruned_at=max(filter(None, pruned), default=None),
                streams={sender: ("", horizon) for sender, horizon in horizons.items()},
                upto_at=max(file.clock, file.manifest.shipped_at),
            )
        )
    return readings


def _names(box: str) -> list[str]:
    """Return the columns of a view that its evidence is made of."""
    said = " ".join([*(expression(box, name) for name in COLUMNS), where(box)])
    return sorted(set(NAME.findall(said)))


def _keep(con: apsw.Connection, box: str, batch: Any) -> None:
    """Add a batch of a log to the raw rows; its moments become milliseconds."""
    names = _names(box)
    values = []
    for name in names:
        column = batch.column(name)
        moment = str(column.type).startswith("timestamp")
        values.append((column.cast("int64") if moment else column).to_pylist())
    marks = ", ".join("?" * len(names))
    con.executemany(KEEP.format(box=box, marks=marks), zip(*values, strict=True))


def _add(con: apsw.Connection, box: str, file: int) -> None:
    names = [name for name in COLUMNS if name != "file"]
    columns = ", ".join(expression(box, name) for name in names)
    condition = where(box) or "1"
    con.execute(
        ADD.format(names=", ".join(names), columns=columns, box=box, condition=condition), (file,)
    )
    con.execute(CLEAR.format(box=box))
