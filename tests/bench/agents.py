"""
Run one durable agent of pydantic-ai on onceward, and on DBOS with SQLite, and kill it.

    python -m tests.bench.agents [TURNS] [FOLDER]

Both are measured in one run on one machine: steps per second, and the seconds that a new process
takes, once it has imported its libraries, to its next effect after a kill in the middle. It needs
``onceward[pydantic-ai]`` and ``pydantic-ai-slim[dbos]``; the page is
docs/explanation/durable-agents.md.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURNS = 100
"""Turns of the model that call a tool: each is two steps."""
DBOS = "DBOS on SQLite"
OURS = "onceward.integrations.pydantic_ai"
ENGINES = ("onceward, safe", "onceward, fast", DBOS)
LEASE = 2.0


class Outside:
    """A model that answers from memory, and a tool that notes its effects with their time."""

    def __init__(self, folder: Path, turns: int, fatal: int) -> None:
        self._effects, self._turns, self._fatal = folder / "effects", turns, fatal
        self._messages = importlib.import_module("pydantic_ai.messages")

    def respond(self, messages: list[Any], _info: object) -> Any:
        """Call the tool again and again, and say that it is done."""
        kind = self._messages
        turn = sum(isinstance(each, kind.ModelResponse) for each in messages)
        self._note(f"model {turn}")
        if turn == self._turns:
            return kind.ModelResponse(parts=[kind.TextPart("done")])
        return kind.ModelResponse(
            parts=[kind.ToolCallPart("use", {"n": turn}, tool_call_id=f"call_{turn}")]
        )

    def use(self, n: int) -> str:
        """Take an effect; die behind it at the fatal one."""
        self._note(f"tool {n}")
        if n == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"used {n}"

    def _note(self, call: str) -> None:
        with self._effects.open("a") as effects:
            effects.write(f"{call} {time.time()}\n")


def brain_of(outside: Outside, durability: Any, tool: Callable[..., Any]) -> Any:
    """Return the agent; only its durability differs."""
    pydantic_ai = importlib.import_module("pydantic_ai")
    model = importlib.import_module("pydantic_ai.models.function").FunctionModel(outside.respond)
    return pydantic_ai.Agent(
        model, name="bench", tools=[tool], capabilities=[durability], end_strategy="graceful"
    )


def on_onceward(folder: Path, outside: Outside, durability: str) -> float:
    """Run it in a handler; return the seconds that the run took."""
    from onceward import Agent, AsyncContext, Postbox  # noqa: PLC0415 - of one process
    from onceward.integrations.pydantic_ai import OncewardDurability  # noqa: PLC0415 - as above

    brain, agent, took = brain_of(outside, OncewardDurability(), outside.use), Agent("bench"), []

    @agent.on("text")
    async def work(body: str, ctx: AsyncContext) -> str:
        begun = time.monotonic()
        answer = str((await brain.run(body, usage_limits=unlimited())).output)
        took.append(time.monotonic() - begun)
        return answer

    settings: Any = {"durability": durability, "lease": LEASE}
    with Postbox(folder / "bench.db", agent=agent, **settings) as box:
        box.result(box.request("bench", "go", key="go"), reply=str, timeout=600)
    return took[0]


def on_dbos(folder: Path, outside: Outside, _durability: str) -> float:
    """Run it in a workflow; return the seconds that the run took."""
    dbos = importlib.import_module("dbos")
    durable = importlib.import_module("pydantic_ai.durable_exec.dbos")
    dbos.DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder / 'dbos.db'}",
            "log_level": "ERROR",
        }
    )

    @dbos.DBOS.step()  # type: ignore[untyped-decorator]
    def use(n: int) -> str:
        """Take an effect."""
        return outside.use(n)

    brain, took = brain_of(outside, durable.DBOSDurability(), use), list[float]()

    @dbos.DBOS.workflow()  # type: ignore[untyped-decorator]
    async def work(prompt: str) -> str:
        begun = time.monotonic()
        answer = str((await brain.run(prompt, usage_limits=unlimited())).output)
        took.append(time.monotonic() - begun)
        return answer

    async def main() -> None:
        with dbos.SetWorkflowID("go"):
            handle = await dbos.DBOS.start_workflow_async(work, "go")
        await handle.get_result()

    dbos.DBOS.launch()
    asyncio.run(main())
    dbos.DBOS.destroy()
    return took[0]


def unlimited() -> Any:
    """Return limits that a long run stays within."""
    return importlib.import_module("pydantic_ai.usage").UsageLimits(request_limit=None)


def child(engine: str, folder: Path, turns: int, fatal: int) -> None:
    """Run the agent in this process, and print the seconds."""
    outside = Outside(folder, turns, fatal)
    importlib.import_module("pydantic_ai.durable_exec.dbos" if engine == DBOS else OURS)
    (folder / "ready").write_text(str(time.time()))
    run = on_dbos if engine == DBOS else on_onceward
    sys.stdout.write(json.dumps(run(folder, outside, engine.rpartition(" ")[2])))


def start(engine: str, folder: Path, turns: int, fatal: int) -> str:
    """Run the agent in a process of its own; return what it printed."""
    words = [engine, folder, turns, fatal]
    command = [sys.executable, "-m", "tests.bench.agents", "child", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    killed = done.returncode == -signal.SIGKILL
    if (fatal >= 0) != killed:
        sys.exit(f"{engine} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def measure(engine: str, home: Path, turns: int) -> dict[str, Any]:
    """Return the figures of one engine."""
    fresh, killed = home / "fresh", home / "killed"
    for folder in (fresh, killed):
        folder.mkdir(parents=True)
    took = float(start(engine, fresh, turns, -1).splitlines()[-1])
    start(engine, killed, turns, turns // 2)
    before = len((killed / "effects").read_text().splitlines())
    start(engine, killed, turns, -1)
    ready = float((killed / "ready").read_text())
    lines = (killed / "effects").read_text().splitlines()
    calls = Counter(line.rpartition(" ")[0] for line in lines)
    return {
        "engine": engine,
        "steps a second": round((2 * turns + 1) / took),
        "imports to next effect, s": round(float(lines[before].split()[-1]) - ready, 2),
        "called twice": sorted(call for call, count in calls.items() if count > 1),
    }


def main(turns: int = TURNS, folder: str | None = None) -> None:
    """Measure each engine, three times in turn, and print the figures."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        for lap in range(3):
            for engine in ENGINES:
                figures = measure(engine, Path(home, f"{lap} {engine}"), turns)
                sys.stdout.write(f"{json.dumps(figures)}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        turns, folder = [*sys.argv[1:3], *[""] * 2][:2]
        main(int(turns or TURNS), folder or None)
