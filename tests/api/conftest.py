"""A home with a clock that is turned by hand; every behaviour is asked of both facades."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from onceward import AsyncPostbox, Postbox
from onceward.file.database import Database
from onceward.testing import Controls
from onceward.testing.clock import ManualClock
from onceward.types import AsyncMailbox


class Plain:
    """An awaitable object, called as if it were none."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:
        """Return a plain value, or a call that waits for its answer."""
        return self._plain(getattr(self._inner, name))

    def __repr__(self) -> str:
        """Look like what is wrapped."""
        return repr(self._inner)

    def _plain(self, value: Any) -> Any:
        if inspect.isroutine(value):
            return lambda *args, **named: self._plain(value(*args, **named))
        if inspect.iscoroutine(value):
            return self._plain(self._runner.run(value))
        if inspect.isasyncgen(value):
            return iter(self._runner.run(_all(value)))
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        return Plain(value, self._runner) if type(value).__name__.startswith("Async") else value

    def __enter__(self) -> Self:
        """Enter the asynchronous context."""
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *about: object) -> bool:
        """Leave the asynchronous context."""
        return bool(self._runner.run(self._inner.__aexit__(*about)))


class OnThread:
    """An async object, called from another thread as if it were a sync one."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        """Return a plain value, or a call that waits for the loop's answer."""
        found = getattr(self._inner, name)
        if not inspect.isroutine(found):
            return OnThread(found, self._loop) if name == "tx" else found
        return lambda *args: asyncio.run_coroutine_threadsafe(found(*args), self._loop).result()


async def _all(found: Any) -> list[Any]:
    return [each async for each in found]


class Home:
    """Agents of one home, opened by name."""

    def __init__(self, folder: Path, stack: ExitStack, runner: asyncio.Runner | None) -> None:
        self.folder, self.clock = folder, ManualClock()
        self._stack, self._runner = stack, runner

    def open(self, agent: str, *, named: bool = True, **options: Any) -> Any:
        """Open an agent's file without engines, under its name or, if that exists, without."""
        given: dict[str, Any] = {
            "agent": agent if named else None,
            "start": False,
            "testing": Controls(clock=self.clock),
            "delivery_retry": "±0%",
            "handler_retry": "±0%",
        } | options
        path = self.folder / "agents" / f"{agent}.db"
        path.parent.mkdir(exist_ok=True)
        if self._runner is None:
            return self._stack.enter_context(Postbox(path, **given))
        return self._stack.enter_context(Plain(AsyncPostbox(path, **given), self._runner))

    def handler(self, handle: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
        """Return a handler for either face: the async one takes coroutine functions."""
        if self._runner is None:
            return handle

        async def awaited(message: Any, effects: Any) -> None:
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(handle, OnThread(message, loop), OnThread(effects, loop))

        return awaited

    @staticmethod
    def reader(mailbox: Any) -> Any:
        """Return the reading side of a mailbox, behind either face."""
        inner = mailbox._inner if isinstance(mailbox, Plain) else mailbox
        plain = inner._face[0] if isinstance(inner, AsyncMailbox) else inner
        return plain._reader

    @staticmethod
    def file(box: Any) -> Database:
        """Return the file behind either facade: this process has it open already."""
        found = Database.open(box.file.path)
        found.close()
        return found


@pytest.fixture(params=["sync", "async"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """Return a home whose agents are opened through one of the two facades."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner()) if request.param == "async" else None
        yield Home(tmp_path, stack, runner)


@pytest.fixture
def fill() -> Callable[..., list[str]]:
    """Return the call that sends bodies to a mailbox and carries them there."""

    def send(box: Any, mailbox: Any, *bodies: Any, **options: Any) -> list[str]:
        ids = [mailbox.send(body, **options) for body in bodies]
        box.run_until_idle()
        return ids

    return send
