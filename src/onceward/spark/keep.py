"""Writes the tables of a job one after the other, so that a run which was broken off goes on behind the last one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from onceward.spark import manifest
from onceward.spark.fleet import Fleet

Tell = Callable[[str], object]


def keep(
    fleet: Fleet,
    job: str,
    out: Path,
    made: Mapping[str, Callable[[], DataFrame]],
    *,
    resume: bool = False,
    tell: Tell = str,
) -> dict[str, DataFrame]:
    """
    Write each table that is *made* as Parquet into a folder of its name, then the manifest; return them as they were stored.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it.

    """
    with manifest.alone(out, job) as own:
        given = manifest.plan(fleet, job)
        planned = manifest.prepare(own, given, resume=resume)
        if planned is given:  # nothing of an earlier run counts
            for name in made:
                shutil.rmtree(own / name, ignore_errors=True)
        for name, make in made.items():
            tell(f"writing {name}")
            if not (own / name / "_SUCCESS").exists():
                make().write.mode("overwrite").parquet(str(own / name))
        manifest.write(own / manifest.NAME, planned | {"tables": list(made)})
        shutil.rmtree(own / "work")
        return {name: fleet.spark.read.parquet(str(own / name)) for name in made}
