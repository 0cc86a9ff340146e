"""The fleet is judged where neither Spark nor Arrow is installed."""

import subprocess
import sys
from pathlib import Path

import onceward

FOLDER = Path(onceward.__file__).parent / "fleet"
ARROW = ("rows", "ship")
"""Beginnings of the names of modules that need pyarrow; none needs pyspark."""
WITHOUT = "import importlib, sys\nfor name in {missing}: sys.modules[name] = None\n"
IMPORT = "for name in {modules}: importlib.import_module('onceward.fleet' + name)"


def _imported(missing: list[str], modules: list[str]) -> str:
    program = WITHOUT.format(missing=missing) + IMPORT.format(modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stderr


def test_the_fleet_needs_neither_spark_nor_arrow() -> None:
    """Every module is importable without both, but for those that write or read Arrow."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(ARROW))
    modules = ["" if name == "__init__" else f".{name}" for name in names]

    assert "" == _imported(["pyspark", "pyarrow", "py4j"], modules)
    assert "" in modules


SPARK = (
    "import sys; sys.modules['pyspark'] = None; from onceward.fleet import spark; spark.session()"
)


def test_spark_without_its_extra_says_what_installs_it() -> None:
    """The package itself can be imported: what needs Spark is refused when it is called."""
    ran = subprocess.run([sys.executable, "-c", SPARK], capture_output=True, text=True, check=False)

    assert (
        "onceward.errors.MissingExtra: onceward.fleet.spark needs pyspark, which is not installed:"
        " pip install 'onceward[spark]'"
    ) == ran.stderr.splitlines()[-1]
