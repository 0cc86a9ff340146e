"""examples/mcp: each configuration starts a server that the command takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceward.ops.cli.app import build

FOLDER = Path(__file__).parents[2] / "examples" / "mcp"
FILES = sorted(FOLDER.glob("*.json"))


def servers(file: Path) -> list[dict[str, Any]]:
    """Return the servers that a file configures."""
    found = json.loads(file.read_text())
    return list((found.get("mcpServers") or found["servers"]).values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_configuration_starts_the_command(file: Path) -> None:
    """Its words are taken by the parser, or its url is where the README says."""
    found = servers(file)

    assert 1 == len(found)
    for each in found:
        if "url" in each:
            assert "http://127.0.0.1:8425/mcp" == each["url"]
            continue
        assert "onceward" == each["command"]
        _, bound, unused, *_ = build(each["args"]).parse_args(each["args"], exit_on_error=False)
        assert ([], 3) == (list(unused or []), len(bound.arguments))


def test_the_readme_names_each_file() -> None:
    """And no other."""
    text = (FOLDER / "README.md").read_text()

    assert [] == [file.name for file in FILES if f"`{file.name}`" not in text]
