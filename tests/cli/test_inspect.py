"""``onceward inspect``: serves until a signal, and hands out a token where one is needed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.children import ONCEWARD, Child

from onceward import Postbox

Cli = Callable[..., Any]
PRINTED = re.compile(r"at (http://\S+); interrupt to stop")


@contextmanager
def inspecting(*words: object, **env: str) -> Iterator[tuple[Child, str]]:
    """Start the program at a free port; yield it and the address that it printed."""
    command = [*ONCEWARD, "inspect", *words, "--port=0"]
    with Child(command, "stderr", env=os.environ | env) as child:
        found = PRINTED.search(child.read())
        assert found is not None
        yield child, found[1]


@pytest.mark.usefixtures("shop")
def test_it_serves_a_home_until_a_signal(home: Path) -> None:
    """The pages answer at the printed address; an interrupt ends it with its code."""
    with inspecting(home) as (child, url):
        page = httpx2.get(f"{url}agents/shop")
        figures = httpx2.get(f"{url}metrics")
        child.stop(signal.SIGINT)

    assert (200, True) == (page.status_code, "<h1>shop</h1>" in page.text)
    assert "onceward_file_readable" in figures.text
    assert 130 == child.returncode


def test_a_stream_of_events_does_not_keep_it(home: Path, shop: Postbox) -> None:
    """An open page is told of a commit, and is closed when the program stops."""
    with inspecting(home) as (child, url):
        httpx2.get(f"{url}ready")
        with httpx2.stream("GET", f"{url}events?key=shop", timeout=60) as answer:
            lines = answer.iter_lines()
            assert "retry: 2000" == next(lines)
            shop.send("shop", 1, type="x")
            changed = next(line for line in lines if line.startswith("data:"))
            child.stop()
            assert 143 == child.returncode

    assert "shop" in changed or "null" in changed


@pytest.mark.usefixtures("shop")
def test_actions_need_the_printed_token(home: Path) -> None:
    """A new one in the address, unless the environment has one, which is not printed."""
    with inspecting(home, "--write") as (_, url):
        assert 401 == httpx2.get(url.partition("?")[0]).status_code
        with httpx2.Client(follow_redirects=True) as reader:
            assert "with actions" in reader.get(url).text
    with inspecting(home, "--write", ONCEWARD_INSPECT_TOKEN="x" * 20) as (_, url):
        assert "token" not in url
        given = {"authorization": f"Bearer {'x' * 20}"}
        assert 200 == httpx2.get(url, headers=given).status_code

    assert (home / "inspect-audit.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 3, "there is no nowhere"),
        (["--redact=("], 2, "not a regular expression"),
        (["--host=203.0.113.7", "--port=0"], 1, "cannot listen at 203.0.113.7"),
        (["--write", "--audit=/nowhere/x", "--port=0"], 1, "cannot be written"),
    ],
)
def test_what_cannot_be_served_is_refused(cli: Cli, words: list[str], code: int, said: str) -> None:
    """At once, with a cure."""
    ran = cli("inspect", *words)

    assert (code, True) == (ran.code, said in ran.err)


def test_a_short_token_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be guessed."""
    monkeypatch.setenv("ONCEWARD_INSPECT_TOKEN", "short")

    assert 2 == cli("inspect", "--write").code
