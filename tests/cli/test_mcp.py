"""``onceward mcp``: what cannot be served is refused at once, with a cure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--agent", "nobody"], 3, "onceward init"),
        (["--limit", "many"], 2, "10/m"),
        (["--limit", "5/hour"], 2, "is not a valid duration"),
        (["--limit", "0"], 2, "limit"),
        (["--peers", ","], 2, "no peer is allowed"),
        (["--http", "nowhere"], 2, "HOST:PORT"),
        (["--http", "127.0.0.1:70000"], 2, "HOST:PORT"),
        (["--http", "0.0.0.0:0"], 2, "ONCEWARD_MCP_TOKEN"),
        (["--http", "203.0.113.7:8425"], 2, "ONCEWARD_MCP_TOKEN"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_what_cannot_be_served_is_refused(cli: Cli, words: list[str], code: int, said: str) -> None:
    """A missing file, a limit that is none, an address without a token."""
    ran = cli("mcp", *words)

    assert (code, True) == (ran.code, said in ran.err), ran.err


@pytest.mark.usefixtures("shop")
def test_a_short_token_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could be guessed; an address that is not ours is refused after it."""
    monkeypatch.setenv("ONCEWARD_MCP_TOKEN", "short")
    assert "16 ASCII characters" in cli("mcp", "--http", "0.0.0.0:0").err
    monkeypatch.setenv("ONCEWARD_MCP_TOKEN", "x" * 16)

    assert 1 == cli("mcp", "--http", "203.0.113.7:8425").code


@pytest.mark.usefixtures("shop")
def test_a_missing_extra_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what to install."""
    monkeypatch.setitem(sys.modules, "anyio", None)

    assert "pip install 'onceward[mcp]'" in cli("mcp").err
