"""``onceward metrics``: the metrics of agents' files as text for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

from onceward.file.environment import env_or_project
from onceward.ops.cli.exit_codes import DONE, PARTLY, NothingThere
from onceward.ops.cli.options import said
from onceward.ops.cli.output import document, safe
from onceward.ops.cli.target import ANSWER, Answer
from onceward.ops.observe.snapshots import agent_files

MOST: Final = 20


def metrics(
    *places: Path,
    peers: Annotated[int, said("Maximum peers of an agent with their own series.")] = MOST,
    answer: Answer = ANSWER,
) -> int:
    """
    Print the metrics of agents' files as text for Prometheus.

    Gauges and totals are read from the files, on read-only connections; durations are measured by
    the processes that work: see --metrics of work, relay and serve. For a file that cannot be read
    onceward_file_readable is 0 and the exit code 6. With --json: name, labels and value.

    Example: onceward metrics /srv/home

    Args:
        places: Home folders and files; default ONCEWARD_HOME, else here.

    """
    from onceward.metrics import FileMetrics, new_registry, text_of  # noqa: PLC0415 - an extra

    chosen = homes(places)
    registry = new_registry()
    registry.register(FileMetrics(chosen, peers=peers, within=None))
    samples = [sample for family in registry.collect() for sample in family.samples]
    if answer.json:
        document([{"name": s.name, "labels": s.labels, "value": s.value} for s in samples])
    else:
        lines = text_of(registry)[1].decode().split("\n")
        sys.stdout.write("\n".join(map(safe, lines) if sys.stdout.isatty() else lines))
    unread = [s for s in samples if s.name == "onceward_file_readable" and not s.value]
    return PARTLY if unread else DONE


def homes(places: tuple[Path, ...]) -> tuple[Path, ...]:
    """
    Return the given folders and files, by default the home.

    Raises:
        NothingThere: a place does not exist, or there is no agent's file.

    """
    chosen = places or (Path(env_or_project("home") or "."),)
    if missing := [place for place in chosen if not place.exists()]:
        raise NothingThere(f"there is no {missing[0]}: name home folders and agents' files")
    if not agent_files(chosen):
        cure = f"create one with onceward init NAME --home {chosen[0]}"
        raise NothingThere(f"no agent's file is in {chosen[0]}: {cure}")
    return chosen
