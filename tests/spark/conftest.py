"""One Spark for the whole run, as its start costs ten seconds; and a small fleet of real files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.fleet import generator
from tests.fleet.boxes import box, mail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceward.fleet.spark.fleet import Fleet

__all__ = ["box", "mail"]
CORES = 2


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a local session of two cores with our format in it; it ends with the run."""
    pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")
    from onceward.fleet import spark as door  # noqa: PLC0415 - an extra

    made = door.session(
        **{
            # a task that dies is run once more, as on a cluster
            "spark.master": f"local[{CORES},2]",
            "spark.driver.memory": "1g",
            # Compiling a query costs more than reading a small fleet with it. Programs that start
            # their own Spark, such as those of test_deployments, compile.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        }
    )
    yield made
    door.stop()


@dataclass(frozen=True)
class Case:
    """A fleet of one crew at honest work, with some dead letters beside it; no test changes it."""

    made: generator.Fleet
    fleet: Fleet


@pytest.fixture(scope="session")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return the fleet that all jobs look at."""
    from onceward.fleet.spark.fleet import Fleet  # noqa: PLC0415 - an extra

    folder = tmp_path_factory.mktemp("jobs")
    made = generator.build(folder, mishaps=("dead_lettered", "expired"))
    return Case(made, Fleet(spark, (str(folder),)))
