"""
The pages about fleets do what they say.

Their blocks that need Spark are run here, in the order in which they stand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from onceward.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: str) -> list[str]:
    """Return a page's blocks of Python, those of other libraries too."""
    return [text for _, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]


def _run(blocks: list[str], names: dict[str, Any]) -> None:
    for block in blocks:
        exec(compile(block, "page", "exec"), names)  # noqa: S102 - our own pages


def _reconciled(code: int, capsys: pytest.CaptureFixture[str], out: str) -> dict[str, int]:
    capsys.readouterr()
    assert code == main(["fleet", "reconcile", "home", "--grace", "0s", "--out", out, "--json"])
    verdicts: dict[str, int] = json.loads(capsys.readouterr().out)["verdicts"]
    return verdicts


@pytest.mark.broken("the bank's disk broke, and its backup knows less than the store")
def test_the_tutorial_loses_four_payments_and_finds_them_again(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The fleet is made, broken, judged and mended, with the figures of the page.

    It is judged by the command and by the function.
    """
    monkeypatch.chdir(tmp_path)
    *broken, asked, mended = _blocks("tutorial/4-prove-your-fleet.md")
    page = (DOCS / "tutorial" / "4-prove-your-fleet.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    _run(broken, names)
    verdicts = _reconciled(1, capsys, "report")

    assert {
        name: int(count)
        for name, count in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    } == verdicts
    assert spark.range(1).count() == 1
    _run([asked], names)
    assert "|     bank|    4|" in capsys.readouterr().out
    _run([mended], names)
    assert {"delivered_once"} == set(_reconciled(0, capsys, "again"))


def test_a_session_of_ones_own_reads_and_reconciles(
    spark: SparkSession, mail: Path, tmp_path: Path
) -> None:
    """
    What the page on clusters does with its session is done with ours.

    Lakes need more than the extra brings.
    """
    blocks = [
        block.replace("/mnt/fleet", str(mail)).replace(
            "/mnt/reports/today", str(tmp_path / "today")
        )
        for block in _blocks("how-to/run-on-a-cluster.md")
    ]
    lake = next(at for at, block in enumerate(blocks) if "writeTo" in block)
    names: dict[str, Any] = {"spark": spark}
    _run([*blocks[:lake], blocks[lake].splitlines()[0]], names)

    assert {"delivered_once": 3} == {
        name: count for name, count in names["report"].verdicts.items() if name == "delivered_once"
    }
    assert ({"sender", "recipient", "verdict"} <= set(names["frames"].columns), 5) == (
        True,
        names["frames"].count(),
    )
