"""Write the tables of a job in order, so that an interrupted run continues after the last one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from onceward.fleet import manifest
from onceward.fleet.spark.fleet import Fleet

OnStep = Callable[[str], object]


def keep(
    fleet: Fleet,
    job: str,
    out: Path,
    made: Mapping[str, Callable[[], DataFrame]],
    *,
    resume: bool = False,
    on_step: OnStep = str,
) -> dict[str, DataFrame]:
    """
    Write each table of *made* as Parquet, then the manifest; return the tables as stored.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it.
        NamesNoFile: a path names no file; nothing is written.

    """
    given = manifest.plan(fleet.paths, job, resume=resume)
    with manifest.alone(out, job) as own:
        planned = manifest.prepare(own, given, resume=resume)
        if planned is given:  # nothing of an earlier run counts
            for name in made:
                shutil.rmtree(own / name, ignore_errors=True)
        for name, make in made.items():
            on_step(f"writing {name}")
            if not (own / name / "_SUCCESS").exists():
                make().write.mode("overwrite").parquet(str(own / name))
        manifest.write(own / manifest.NAME, planned | {"tables": list(made)})
        shutil.rmtree(own / "work")
        return {name: fleet.spark.read.parquet(str(own / name)) for name in made}
