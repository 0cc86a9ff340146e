"""Interrupt this thread at any moment at which Python looks for a signal."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

CHECKED: Final = ("CALL", "RESUME", "JUMP_BACKWARD")
"""After these Python looks whether a signal came."""
Look = Callable[[FrameType], None]


class TooLong(Exception):
    """A time limit, as job runners and test runners raise it."""


def looked(code: CodeType, at: int) -> bool:
    """Return whether Python looks for signals right after the instruction at a place."""
    return at >= 0 and dis.opname[code.co_code[at]].startswith(CHECKED)


@contextmanager
def interrupted(
    nth: int,
    exception: type[BaseException],
    *,
    when: Callable[[], bool],
    rooms: Collection[str],
) -> Iterator[list[str]]:
    """
    Raise *exception*, by a signal, at the *nth* moment in which Python looks for it in *rooms*.

    Yields where that was.
    """
    last, seen, hit = dict[tuple[int, CodeType], int](), [0], list[str]()

    def begin(frame: FrameType) -> None:
        last.pop((id(frame), frame.f_code), None)

    def look(frame: FrameType) -> None:
        place = (id(frame), frame.f_code)
        previous, last[place] = last.get(place, -1), frame.f_lasti
        if when() and looked(frame.f_code, previous):
            seen[0] += 1
            if seen[0] == nth:
                hit.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                signal.raise_signal(signal.SIGALRM)

    def limit(*_: object) -> None:
        raise exception

    usual = signal.signal(signal.SIGALRM, limit)
    try:
        with stepped(rooms, begin, look):
            yield hit
    finally:
        signal.signal(signal.SIGALRM, usual)


if sys.version_info >= (3, 12):  # its tracers miss instructions: python/cpython#103615

    @contextmanager
    def stepped(rooms: Collection[str], begin: Look, look: Look) -> Iterator[None]:
        """Call *begin* with each frame of *rooms*, and *look* before its instructions."""
        watch, tool, events, us = sys.monitoring, 4, sys.monitoring.events, get_ident()
        entered = set[CodeType]()

        def enter(code: CodeType, _: int) -> Any:
            if code.co_filename not in rooms:
                return watch.DISABLE
            if code not in entered:
                entered.add(code)
                watch.set_local_events(tool, code, events.INSTRUCTION)
            if get_ident() == us:
                begin(sys._getframe(1))
            return None

        def step(_: CodeType, __: int) -> None:
            if get_ident() == us:
                look(sys._getframe(1))

        watch.use_tool_id(tool, "interrupts")
        for start in (events.PY_START, events.PY_RESUME):
            watch.register_callback(tool, start, enter)
        watch.register_callback(tool, events.INSTRUCTION, step)
        watch.restart_events()
        watch.set_events(tool, events.PY_START | events.PY_RESUME)
        try:
            yield
        finally:
            watch.set_events(tool, 0)
            for code in entered:
                watch.set_local_events(tool, code, 0)
            watch.free_tool_id(tool)

else:

    @contextmanager
    def stepped(rooms: Collection[str], begin: Look, look: Look) -> Iterator[None]:
        """Call *begin* with each frame of *rooms*, and *look* before its instructions."""
        before = sys.gettrace()

        def step(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                look(frame)
            return step

        def enter(frame: FrameType, _: str, __: Any) -> Any:
            if frame.f_code.co_filename not in rooms:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            begin(frame)
            return step

        while True:
            with suppress(RuntimeError):  # another thread installs its tracer just now
                sys.settrace(enter)
                break
        try:
            yield
        finally:
            sys.settrace(before)
