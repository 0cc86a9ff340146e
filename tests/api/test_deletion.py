"""A feature is taken out by deleting its folder and its entry: everything else works without it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceward

PACKAGE = Path(str(onceward.__file__)).parent
FEATURES = sorted(each.parent.name for each in PACKAGE.glob("features/*/__init__.py"))
REFERRED_TO = {
    "channels",
    "mailboxes",
    "runs",
    "schedules",
    "steps",
    *("checks", "history", "limits", "polling", "streams"),
}
"""Features without which some program that does not use them fails."""

PROGRAM = """
import asyncio, importlib.util, sys
from pathlib import Path

from onceward import Agent, AsyncPostbox, Context, Msg, Postbox
from onceward.ops.cli import main

folder, absent = Path(sys.argv[1]), sys.argv[2]
assert importlib.util.find_spec(f"onceward.features.{absent}") is None

class Add(Msg):
    a: int
    b: int

agent = Agent("adder")

@agent.on(Add)
def add(message: Add, ctx: Context) -> None:
    ctx.reply({"sum": message.a + message.b})

@agent.on("note")
def note(message: dict) -> None:
    assert {"any": "body"} == message

adder = Postbox(folder / "adder.db", agent=agent, start=False)
asker = Postbox(folder / "asker.db", agent="asker", start=False)
ticket = asker.request("adder", Add(a=1, b=2))
plain = asker.send("adder", {"any": "body"}, type="note")
for box in (asker, adder, asker):
    box.run_until_idle()
assert {"sum": 3} == asker.result(ticket, reply=dict)
assert ["acked", "acked"] == [asker.resolve(each) for each in (ticket.id, plain)]
for box in (asker, adder):
    box.file.run_maintenance()
    box.close()

served = Agent("served")

@served.on(Add)
async def served_add(message: Add, ctx) -> None:
    await ctx.reply({"sum": message.a + message.b})

async def both() -> None:
    async with (
        AsyncPostbox(folder / "served.db", agent=served) as _,
        AsyncPostbox(folder / "caller.db", agent="caller") as caller,
    ):
        assert {"sum": 7} == await caller.ask("served", Add(a=3, b=4), reply=dict, timeout=30)
        await caller.file.run_maintenance()

asyncio.run(both())
main(["--help"])
"""


def _without(feature: str, source: Path) -> str:
    """Return the list of features without the entry of one."""
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(f"Feature(name='{feature}'"):
            lines[node.lineno - 1 : node.end_lineno] = []
    return "".join(lines)


def _link(folder: Path, names: set[str]) -> None:
    for each in names:
        (folder / each).symlink_to(PACKAGE / folder.name / each)


def _tree_without(feature: str, folder: Path) -> Path:
    """Make a tree of links to the package's files, without a feature; return where to import it."""
    top = folder / "tree" / "onceward"
    top.mkdir(parents=True)
    for each in PACKAGE.iterdir():
        if each.name in {"api", "features"}:
            (top / each.name).mkdir()
        elif each.name != "__pycache__":
            (top / each.name).symlink_to(each)
    _link(top / "features", {each.name for each in PACKAGE.glob("features/[!_]*")} - {feature})
    _link(top / "features", {"__init__.py"})
    _link(top / "api", {each.name for each in PACKAGE.glob("api/*.py")} - {"features.py"})
    entries = _without(feature, PACKAGE / "api" / "features.py")
    (top / "api" / "features.py").write_text(entries, encoding="utf-8")
    return top.parent


@pytest.mark.parametrize("feature", FEATURES)
def test_all_else_works_without_a_feature(
    feature: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """
    Messages are sent, handled and answered, files maintained and the command's help drawn.

    The postboxes are plain and asynchronous ones; the interpreter is a fresh one.
    """
    if feature in REFERRED_TO:
        failing = pytest.mark.xfail(strict=True, reason="the rest refers to it")
        request.node.add_marker(failing)
    env = {**os.environ, "PYTHONPATH": str(_tree_without(feature, tmp_path))}

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), feature],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=env,
        text=True,
        timeout=120,
    )

    assert 0 == ran.returncode, ran.stderr
    assert "Usage" in ran.stdout
