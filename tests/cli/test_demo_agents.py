"""``onceward demo --agents``: a loop is killed at each of its calls, and its journey is drawn."""

import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from onceward.ops.cli import demo_agents, main


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the command prints about its kills; no test changes its files."""
    with redirect_stdout(io.StringIO()) as out:
        code = main(["demo", "--agents", "--json", "--home", str(tmp_path_factory.mktemp("trip"))])
    assert 0 == code
    made: dict[str, Any] = json.loads(out.getvalue())
    return made


def test_each_tool_takes_effect_once(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven kills, each call made twice, three effects; the drawing has a line for each."""
    assert report["ok"]
    assert (7, 14) == (len(report["kills"]), report["calls"])
    assert ["book flight 7", "pay 420", "search flights"] == report["effects"]
    assert ["think#1", "use#1", "think#2", "use#2", "think#3", "use#3", "think#4"] == [
        each["call"] for each in report["journey"]
    ]

    demo_agents._show(report)
    drawn = capsys.readouterr().out.splitlines()
    assert ["killed", "think#1"] == [line.split()[0] for line in drawn[:2]]
    assert 14 == sum("x" in line.split() or "#" in line.split() for line in drawn)
    assert any(line.startswith("Each tool took effect once.") for line in drawn)


def test_an_effect_that_is_missing_or_doubled_is_told(
    report: dict[str, Any], tmp_path: Path
) -> None:
    """The verdict is read from the ledger."""
    folder = Path(shutil.copytree(report["home"], tmp_path / "trip"))
    [first, second, _] = sorted(folder.glob("*.ledger"))

    second.write_text(first.read_text())
    assert not demo_agents._report(folder, [])["ok"]
    second.unlink()
    assert not demo_agents._report(folder, [])["ok"]
