"""The tutorial about fleets does what it says, without Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from onceward.ops.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "4-prove-your-fleet.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\| `(\w+)` \| (\d+) \|", re.MULTILINE)


def _reconciled(code: int, capsys: pytest.CaptureFixture[str], out: str) -> dict[str, int]:
    capsys.readouterr()
    assert code == main(["fleet", "reconcile", "home", "--grace", "0s", "--out", out, "--json"])
    verdicts: dict[str, int] = json.loads(capsys.readouterr().out)["verdicts"]
    return verdicts


@pytest.mark.broken("the bank's disk broke, and its backup knows less than the store")
def test_the_tutorial_loses_four_payments_and_finds_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The fleet is made, broken, judged and mended, with the figures of the page.

    It is judged by the command and by the function.
    """
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    made, broken, asked, mended = BLOCK.findall(page)
    names: dict[str, Any] = {"__name__": "page"}
    for block in (made, broken):
        exec(compile(block, "page", "exec"), names)  # noqa: S102 - our own page
    verdicts = _reconciled(1, capsys, "by-command")

    assert {name: int(count) for name, count in TABLE.findall(page)} == verdicts
    exec(compile(asked, "page", "exec"), names)  # noqa: S102 - as above
    assert verdicts == names["report"].verdicts
    exec(compile(mended, "page", "exec"), names)  # noqa: S102 - as above
    assert {"delivered_once"} == set(_reconciled(0, capsys, "again"))
