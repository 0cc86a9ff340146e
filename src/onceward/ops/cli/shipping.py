"""The options of a command that ships files while it runs."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from cyclopts import Parameter

from onceward.ops.cli.durations import Span, SpanOption
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.ship import attempt

if TYPE_CHECKING:
    from onceward.fleet.ship.shipper import Shipper

MINUTE: Final = Span(60)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shipping:
    """Where a command ships its files to."""

    ship_to: str | None = None
    """Append what changes in the files to a log in this folder, or at s3://, gs:// or abfs://."""
    ship_every: SpanOption = MINUTE
    """The pause between two times of shipping; the last one is at the end."""

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Ship the files of a folder in a thread while the block runs, and once more behind it."""
        if self.ship_to is None:
            yield
            return
        if not self.ship_every:
            raise Usage("--ship-every must be more than 0")
        from onceward.fleet.ship.shipper import Shipper  # noqa: PLC0415 - an extra

        shipper = Shipper([str(Path(glob.escape(str(folder)), "*.db"))], self.ship_to)
        ended = Event()
        thread = Thread(target=self._ship, args=(shipper, ended), name="onceward-ship")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            attempt(shipper)

    def _ship(self, shipper: Shipper, ended: Event) -> None:
        while not ended.wait(self.ship_every):
            attempt(shipper)
