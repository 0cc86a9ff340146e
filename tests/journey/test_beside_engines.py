"""Calls of ``run_until_idle`` beside engines that run, and after they stopped."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

from onceward import Agent, Context, Postbox

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""
COUNT = 200


def test_callers_and_the_worker_handle_no_message_at_the_same_time(tmp_path: Path) -> None:
    """Two threads that run the engines by hand beside the worker's disturb neither it nor order."""
    agent, ended, inside, most = Agent("billing"), Event(), list[object](), list[int]()

    @agent.on("json")
    def work(body: int, ctx: Context) -> None:
        inside.append(body)
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (body,))
        most.append(len(inside))
        inside.remove(body)

    with Postbox(tmp_path / "billing.db", agent=agent, busy_timeout=LIMIT) as billing:
        with billing.begin() as tx:
            tx.execute("CREATE TABLE effects (n INTEGER)")

        def run() -> None:
            while not ended.is_set():
                billing.run_until_idle()

        threads = [Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for n in range(COUNT):
            billing.send("billing", n)
        left = billing.flush(LIMIT)
        while (now := billing.file.stats())["inbox_pending"] + now["inbox_processing"]:
            ended.wait(0.01)
        ended.set()
        for thread in threads:
            thread.join(LIMIT)

        effects = [n for (n,) in billing.query("SELECT n FROM effects ORDER BY rowid")]
        assert (0, list(range(COUNT)), 1) == (left, effects, max(most))


def test_a_stopped_postbox_handles_nothing(tmp_path: Path) -> None:
    """Running the engines by hand after ``stop`` leaves a message for the next opening."""
    agent = Agent("billing")
    agent.on("*")(lambda _: None)
    with Postbox(tmp_path / "billing.db", agent=agent) as billing:
        billing.stop()
        billing.send("billing", 1)

        moved = billing.run_until_idle()
        assert (True, 1) == (moved < 10, billing.file.stats()["inbox_pending"])
    with Postbox(tmp_path / "billing.db", agent=agent, start=False) as billing:
        billing.run_until_idle()
        assert 0 == billing.file.stats()["inbox_pending"]
