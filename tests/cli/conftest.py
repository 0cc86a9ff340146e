"""A home of agents and a way to call the program as a shell would, inside this process."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.ops.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """The document on stderr."""
        return json.loads(self.err)

    @property
    def lines(self) -> list[list[str]]:
        """The columns of each line on stdout."""
        return [line.split("\t") for line in self.out.splitlines()]


class Terminal(io.StringIO):
    """A person who types."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


Cli = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home, in the environment and as current folder; our agent is shop."""
    for name in ("ONCEWARD_DB", "ONCEWARD_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEWARD_HOME", str(tmp_path))
    monkeypatch.setenv("ONCEWARD_AGENT", "shop")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a call that runs one command line, with a pipe or a person to read from."""
    assert home.is_dir()

    def call(*tokens: object, stdin: str | bytes = "", person: str | None = None) -> Ran:
        monkeypatch.setattr(sys, "stdin", _piped(stdin) if person is None else Terminal(person))
        capsys.readouterr()
        code = main([str(token) for token in tokens])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def shop(home: Path) -> Iterator[Postbox]:
    """Return the postbox of shop, open without engines."""
    with _agent(home, "shop") as box:
        yield box


@pytest.fixture
def billing(home: Path) -> Iterator[Postbox]:
    """Return the postbox of billing, open without engines."""
    with _agent(home, "billing") as box:
        yield box


@pytest.fixture
def buried(shop: Postbox, billing: Postbox) -> list[str]:
    """Return the ids of two messages from billing that shop rejected."""
    ids = billing.send_many([("shop", {"n": n}) for n in range(2)])
    billing.run_until_idle()
    for _ in ids:
        message = shop.receive()
        assert message is not None
        message.reject("not today")
    return ids


def _piped(given: str | bytes) -> io.TextIOBase:
    if isinstance(given, str):
        return io.StringIO(given)
    return io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")


def _agent(home: Path, name: str) -> Postbox:
    return Postbox(home / f"{name}.db", agent=name, start=False)
