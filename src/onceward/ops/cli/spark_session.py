"""Start Spark for the fleet commands; the extra is loaded when one of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Console

from onceward.message.extras import needs
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, show
from onceward.ops.cli.target import Answer

if TYPE_CHECKING:
    from onceward.fleet.spark.fleet import Fleet

OnStep = Callable[[str], object]
Paths = Annotated[str, said("Files, folders (all their *.db) or quoted globs.")]
Resume = Annotated[bool, Quiet, said("Continue an interrupted run into --out.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Session(Answer):
    """How Spark works for a command."""

    cores: int | None = None
    """Number of worker threads. Default: all cores."""
    memory: str = "2g"
    """Memory of Spark's own process."""
    failfast: Annotated[bool, Quiet] = False
    """Fail on the first unreadable file, instead of leaving it out with a note."""

    @property
    def settings(self) -> dict[str, str]:
        """The session's settings."""
        named = {"spark.driver.memory": self.memory}
        return named if self.cores is None else named | {"spark.master": f"local[{self.cores}]"}


SESSION: Final = Session()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reporting(Session):
    """Whether results are kept in a folder, and how Spark works."""

    out: Path | None = None
    """A new or an empty folder, or one that this command filled before. Default: only print."""


REPORTING: Final = Reporting()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Into(Session):
    """Where results go, and how Spark works."""

    out: Path
    """A new or an empty folder, or one that this command filled before."""


def existing(paths: tuple[str, ...]) -> int:
    """
    Return the bytes of the files that the paths name.

    Raises:
        Usage: no path is given.
        NamesNoFile: a path names no file.

    """
    from onceward.fleet import files  # noqa: PLC0415 - of the fleet commands only

    if not paths:
        raise Usage("which files? Name folders, files or globs, such as '/srv/agents/**/*.db'")
    return sum(one.size for one in files.of_each(paths))


@contextmanager
def results(how: Reporting, *, resume: bool = False) -> Iterator[Path]:
    """
    Yield the folder of --out, or a temporary one that is removed behind the block.

    Raises:
        Usage: there is nothing to resume without --out.

    """
    from onceward.fleet.manifest import folder  # noqa: PLC0415 - of the fleet commands only

    if resume and how.out is None:
        raise Usage("--resume continues a run into --out: name its folder")
    with folder(how.out) as out:
        yield out


@contextmanager
def fleet_of(paths: tuple[str, ...], how: Session) -> Iterator[tuple[Fleet, OnStep]]:
    """
    Start Spark for a block; yield the fleet of the paths and a function that reports progress.

    Raises:
        MissingExtra: Spark is not installed.
        Usage: no path is given.
        NamesNoFile: a path names no file.

    """
    existing(paths)
    with working(how, paths) as (fleet, on_step):
        yield fleet, on_step


@contextmanager
def working(how: Session, paths: tuple[str, ...] = ()) -> Iterator[tuple[Fleet, OnStep]]:
    """Start Spark for a block, or use the one of this process; raise MissingExtra without it."""
    with needs("spark", "a fleet command"):
        from onceward.fleet import spark  # noqa: PLC0415 - an extra
        from onceward.fleet.spark import gateway  # noqa: PLC0415 - an extra
        from onceward.fleet.spark.fleet import Fleet  # noqa: PLC0415 - an extra
    ours = not gateway.running()
    with told(how) as on_step:
        on_step("starting Spark")
        with needs("spark", "a fleet command"):
            session = spark.session(**how.settings)
        try:
            yield Fleet(session, paths, {"mode": "FAILFAST"} if how.failfast else {}), on_step
        finally:
            if ours:
                spark.stop()


@contextmanager
def told(how: Answer) -> Iterator[OnStep]:
    """Report progress on a terminal, and nowhere else."""
    console = Console(stderr=True)
    if how.json or not console.is_terminal:
        yield str
        return
    yield lambda text: console.print(f"[bold]fleet[/] {text}", highlight=False)


def print_rows(found: Any, rows: list[dict[str, Any]], columns: str, how: Answer) -> None:
    """Print a document as JSON, else the named columns of its rows."""
    if how.json:
        document(found)
    else:
        show(rows, columns.split(), how.style)
