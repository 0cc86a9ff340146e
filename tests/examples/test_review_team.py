"""The review team: its rules, the proof of a run, and whole runs with processes that are killed."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.children import ONCEWARD, Child

from onceward.ops.cli import demo_team, main

TEAM = Path(__file__).parents[2] / "examples" / "review_team"
PATIENCE = 0.05


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    """Return the rules, loaded as the scripts load them: by path."""
    return _script("rules")


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    """Return the proof."""
    return _script("proof")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder with files to review, one of them no Python and one no text."""
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(5):
        (folder / f"good_{number}.py").write_text(f"def f{number}():\n    pass\n", encoding="utf-8")
    (folder / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (folder / "latin.py").write_bytes(b"name = '\xff'\n")
    return folder


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"review_team_{name}", TEAM / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (b'def f() -> None:\n    """Do."""\n', []),
        (b"def f(): pass\n", [(1, "missing docstring")]),
        (b"def _f(): pass\n", []),
        (b"class C: pass\n", [(1, "missing docstring")]),
        (b"def _f(x=[], *, y=None): pass\n", [(1, "mutable default")]),
        (b"def _f(a, b, c, d, /, e, f, *, g, h): pass\n", [(1, "too many arguments")]),
        (b"from os import *\n", [(1, "star import")]),
        (b"try:\n    f()\nexcept:\n    g()\n", [(3, "bare except")]),
        (b"try:\n    f()\nexcept OSError:\n    pass\n", [(3, "swallowed exception")]),
        (b"def _f():\n" + b"    x = 1\n" * 60, [(1, "long function")]),
        (b"def _f(x):\n" + b"    if x: x()\n" * 13, [(1, "many branches")]),
        (b"x = '\\d'\n", []),
        (b"", []),
    ],
)
def test_a_rule_sees_its_case(
    rules: ModuleType, tmp_path: Path, source: bytes, found: list[tuple[int, str]]
) -> None:
    """Each rule notices what it is for, on its line, and nothing else is noticed."""
    (tmp_path / "it.py").write_bytes(source)

    assert found == [(each.line, each.rule) for each in rules.review(tmp_path / "it.py")]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (b"def f(:\n", "unparsable"),
        (b"a\0b", "unparsable"),
        (b"(" * 3000 + b")" * 3000, "unparsable"),
        (b"x = '\xff'\n", "undecodable"),
        (b"# -*- coding: klingon -*-\n", "undecodable"),
    ],
)
def test_a_file_that_is_no_python_is_a_finding(
    rules: ModuleType, tmp_path: Path, source: bytes, rule: str
) -> None:
    """A file that cannot be decoded or parsed is something to tell, never a crash of the worker."""
    (tmp_path / "it.py").write_bytes(source)

    assert [rule] == [each.rule for each in rules.review(tmp_path / "it.py")]


def test_a_file_that_is_gone_is_a_finding(rules: ModuleType, tmp_path: Path) -> None:
    """A file that was deleted between listing and reading is told, too."""
    assert ["unreadable"] == [each.rule for each in rules.review(tmp_path / "gone.py")]


# -- the proof -------------------------------------------------------------------------------------


def _evidence(proof: ModuleType, **changed: Any) -> Any:
    """Return what a good run of two tasks leaves behind, but for what is *changed*."""
    good = {
        "files": 2,
        "tasks": {1: (1000, 1, "id-1"), 2: (1001, 1, "id-2")},
        "results": [(1, "worker-1", 3, 1, 1010), (2, "worker-2", 0, 1, 1020)],
        "messages": {"id-1", "id-2"},
        "reviews": [(1, "worker-1", 1, 1005), (2, "worker-2", 1, 1006)],
        "findings": Counter({1: 3}),
    }
    return proof.Evidence(**(good | changed))


def test_a_good_run_is_found_good(proof: ModuleType) -> None:
    """Where every row is there once, nothing is held against the run."""
    found = proof.report(_evidence(proof), [("worker-1", 1003)])

    assert (True, 0, 0, [], []) == tuple(
        found[name] for name in ("ok", "lost", "duplicates", "torn", "violations")
    )
    assert {"p50": 10, "p99": 19, "max": 19} == found["latency_ms"]
    assert {"p50": 2, "p99": 2, "max": 2} == found["back_after_ms"]


@pytest.mark.parametrize(
    ("changed", "lost", "doubled", "torn"),
    [
        ({"results": [(1, "worker-1", 3, 1, 1010)]}, {2}, set(), 0),
        (
            {
                "results": [
                    (1, "worker-1", 3, 1, 1010),
                    (2, "worker-2", 0, 1, 1020),
                    (2, "worker-2", 0, 1, 1021),
                ]
            },
            set(),
            {2},
            0,
        ),
        ({"tasks": {1: (1000, 2, "id-1"), 2: (1001, 1, "id-2")}}, set(), {1}, 0),
        (
            {"reviews": [(1, "worker-1", 1, 1), (2, "worker-2", 1, 1), (2, "worker-3", 2, 2)]},
            set(),
            {2},
            0,
        ),
        ({"reviews": [(1, "worker-1", 1, 1)]}, set(), set(), 1),
        ({"findings": Counter({1: 2})}, set(), set(), 1),
        ({"messages": {"id-1"}}, set(), set(), 1),
        ({"messages": {"id-1", "id-2", "id-3"}}, set(), set(), 1),
        ({"tasks": {1: (1000, 1, "id-1")}, "messages": {"id-1"}}, set(), set(), 1),
        ({"tasks": {1: (1000, 0, "id-1"), 2: (1001, 1, "id-2")}}, set(), set(), 1),
    ],
)
def test_the_proof_sees_what_is_wrong(
    proof: ModuleType, changed: dict[str, Any], lost: set[int], doubled: set[int], torn: int
) -> None:
    """A missing, a doubled and a half committed row are each named, and each fails the run."""
    seen = _evidence(proof, **changed)

    assert (lost, doubled, torn) == (proof.lost(seen), proof.doubled(seen), len(proof.torn(seen)))
    assert proof.report(seen, [])["ok"] is False


def test_a_run_without_tasks_proves_nothing(proof: ModuleType) -> None:
    """Where nothing happened nothing was shown."""
    assert proof.report(proof.Evidence(), [])["ok"] is False


# -- whole runs ------------------------------------------------------------------------------------


def test_the_same_seed_plans_the_same_kills() -> None:
    """A run that went wrong can be repeated."""
    first = demo_team.plan(10.0, 50, 7)

    assert first == demo_team.plan(10.0, 50, 7)
    assert first == sorted(first)
    assert {"coordinator", "worker-1", "worker-2", "worker-3"} == {name for _, name in first}
    assert all(0 < moment < 10 for moment, _ in first)


def test_killed_processes_lose_and_double_nothing(
    tmp_path: Path, code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Four processes, three killed at work, make one document and answer every task once.

    The files are kept.
    """
    home = tmp_path / "home"

    ended = main(
        [
            "demo",
            "--path",
            str(code),
            "--home",
            str(home),
            "--seconds",
            "2",
            "--kills",
            "3",
            "--seed",
            "3",
            "--json",
        ]
    )

    told = json.loads(capsys.readouterr().out)
    assert (0, True, 0, 0, [], []) == (
        ended,
        *(told[name] for name in ("ok", "lost", "duplicates", "torn", "violations")),
    )
    assert (7, 3, 0) == (told["files"], sum(told["kills"].values()), told["crashes"])
    assert told["tasks"] == told["results"] > 0
    assert {"coordinator.db", "worker-1.db", "worker-2.db", "worker-3.db"} <= {
        path.name for path in home.iterdir()
    }


def test_an_answer_that_is_given_twice_is_seen(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that answers twice, the second time with a new message, ends with exit code 1."""
    broken = tmp_path / "team"
    shutil.copytree(TEAM, broken, ignore=shutil.ignore_patterns("__pycache__"))
    script = (broken / "worker.py").read_text(encoding="utf-8")
    again = 'ctx.send("coordinator", Reviewed(task=task.task, findings=len(findings)))'
    (broken / "worker.py").write_text(
        script.replace("    ctx.reply(Reviewed(", f"    {again}\n    ctx.reply(Reviewed("),
        encoding="utf-8",
    )
    monkeypatch.setattr(demo_team, "SCRIPTS", broken)

    ended = main(
        [
            "demo",
            "--path",
            str(code),
            "--home",
            str(tmp_path / "home"),
            "--seconds",
            "0.5",
            "--kills",
            "0",
            "--json",
        ]
    )

    told = json.loads(capsys.readouterr().out)
    assert (1, False, 0) == (ended, told["ok"], told["lost"])
    assert told["duplicates"] > 0


def test_an_interrupt_ends_everybody_and_keeps_the_files(tmp_path: Path, code: Path) -> None:
    """
    Ctrl-C stops the team at once.

    The exit code says so, and the members' files are there and closed.
    """
    home = tmp_path / "home"
    command = [*ONCEWARD, "demo", "--path", code, "--home", home, "--seconds", "600"]
    with Child(command, "stdout", "stderr") as demo:
        while demo.poll() is None and not (home / "coordinator.db").exists():
            with suppress(subprocess.TimeoutExpired):
                demo.wait(PATIENCE)
        _, said = demo.stop(signal.SIGINT)

    assert 130 == demo.returncode
    assert str(home) in said
    assert (home / "kills.json").exists()


@pytest.mark.parametrize(
    ("words", "code_wanted"),
    [
        (["--path", "empty"], 3),
        (["--path", "nowhere"], 3),
        (["--home", "full"], 2),
        (["--seconds", "0"], 2),
        (["--kills", "-1"], 2),
    ],
)
def test_what_cannot_be_run_is_said_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code_wanted: int,
) -> None:
    """
    An empty folder, a folder in use and impossible numbers are refused in a sentence.

    Nothing is started before.
    """
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").touch()
    monkeypatch.chdir(tmp_path)

    ended = main(["demo", *words])

    assert code_wanted == ended
    assert capsys.readouterr().err.startswith("onceward: ")
