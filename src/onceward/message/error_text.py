"""
Turn any exception into bounded text that a file, a log and a peer can take; never raise.

An exception is the user's object: its text may be unreadable or huge, its class may lie about
itself, and its causes may be many or form a circle. Its attributes are therefore read past the
overrides of its class.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final

PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
"""Folder of the stack frames between a worker and the handler that it calls."""
FRAMES: Final = 20
"""Maximum stack frames of each exception in a traceback; the last ones are kept."""
TRACE: Final = 8_000
"""Maximum characters of a traceback; its end, which names the error, is kept."""
LONGEST: Final = 4_000
"""Maximum characters of a stored or logged text; its beginning is kept."""
NAME: Final = 200
"""Maximum characters of the name of a class."""
READABLE: Final = 50_000
"""Characters up to which a text is shown by a traceback; a longer one takes long to write."""
LINKED: Final = 50
"""Exceptions (causes, contexts, members of groups) up to which a traceback has all of them."""
CAUSES: Final = 5
"""Causes that are shown of an exception that has more, or whose text cannot be read."""
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class Hint(StrEnum):
    """
    A cure in the text of an error, in words of Python.

    Errors are written with the members, so that each text stands once: the command line replaces
    the text of a member by its own words.
    """

    RESUME = "file.resume() first"
    TAKEN_OVER = (
        "another machine has taken over this agent, and peers refuse this file: stop its processes;"
        " onceward doctor says which machine"
    )
    ASK_STATE = "ask state(id)"
    ASK_RESULT = "ask result() again later"
    CREATE_FILE = "a Postbox that is opened with agent=NAME creates it"
    OPEN_WITH_AGENT = "open it with agent=NAME, or create it with onceward init NAME"
    HOLD_UNKNOWN = "open this one with hold_unknown=True"
    SEARCH = "open the postbox once with search=True"
    NETWORK_FILESYSTEM = "network_filesystem=True"
    FOREIGN_KEYS = "open the postbox with foreign_keys=True"
    DURABILITY = "open the postbox with durability='safe' or 'fast'"
    BUSY_TIMEOUT = "open the postbox with busy_timeout=SECONDS"
    MAINTAIN = "maintenance does it; now: box.file.run_maintenance()"
    BROADCAST = "broadcast(body) sends"
    TRANSPORT = "pass transports={SCHEME: …} or install one"
    NO_EXPIRY = "or None for no expiry"
    USE_MAILBOX = "use ensure, or another name"
    USE_CHANNEL = "channels.ensure returns the existing one"
    SET_PUBLIC = "set public=True"
    DETACHED = "give the result of detach"
    NEXT_PAGE = "a Page.next"
    MOMENT = "give a datetime, or milliseconds since 1970 (1000 times time.time())"
    TIME_ZONE = "add one, as in replace(tzinfo=UTC) or astimezone()"
    RUNS = "see runs.list"


def storable(text: str, most: int = LONGEST) -> str:
    """Return *text* with at most *most* characters, and escapes for those that no file takes."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    if "\0" in cut:
        cut = cut.replace("\0", "\\x00")
    try:
        cut.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return cut.encode("utf-8", "backslashreplace").decode()
    return cut


def one_line(text: str) -> str:
    """
    Return *text* with escapes for all characters that are not printable.

    The text of a message or an error comes from elsewhere: it must not move a cursor, begin a line
    or change the direction of writing where it is shown.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_line(text: str) -> str:
    """Return JSON with JSON's escapes for all characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def indented(text: str) -> str:
    """Return *text* with escapes as in ``one_line``; each of its lines after the first indented."""
    return "\n    ".join(map(one_line, text.split("\n")))


def error_text(error: BaseException) -> str:
    """Return an error as ``Type: message``."""
    return f"{class_name(error)}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Return the message of an error; if it cannot be read, say what its class raised."""
    try:
        return _bounded(str(error), LONGEST)
    except BaseException as unreadable:  # noqa: BLE001 - an exit in __str__ ends nothing either
        return f"(no text: str() of it raised {class_name(unreadable)})"


def safe_repr(value: object) -> str:
    """Return the repr of any object; if it raises, the name of its class."""
    try:
        return _bounded(repr(value), LONGEST)
    except BaseException:  # noqa: BLE001 - as above
        return f"<{class_name(value)}>"


def class_name(value: object) -> str:
    """Return the name of an object's class, whatever its metaclass says."""
    return storable(type.__dict__["__name__"].__get__(type(value)), NAME)


def trace_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error."""
    found: TracebackType | None = _own(error, "__traceback__")
    return found


def is_honest(error: BaseException) -> bool:
    """Return whether ``isinstance`` may be asked about an error: it is of the class it says."""
    try:
        return error.__class__ is type(error)
    except BaseException:  # noqa: BLE001 - as above
        return False


def exc_info(error: BaseException, trace: TracebackType | None) -> ExcInfo:
    """
    Return what ``logging`` needs to show an error, with *trace*.

    An error whose text would write to a terminal more than characters of one line is shown by one
    that has it escaped, and indented after its first line.
    """
    found = error if _is_plain(error, one_line=True) else _stand_in(error, show=indented)
    return type(found), found, trace


def shown(error: BaseException) -> BaseException:
    """
    Return an error if other libraries can show it quickly, else an exception that stands in for it.

    That one is of a class of the same name, and has the text of the error and its nearest causes.
    """
    return error if _is_plain(error) else _stand_in(error).with_traceback(trace_of(error))


@dataclass(frozen=True, slots=True)
class Raised:
    """The traceback of a failed call, and how long the call took."""

    trace: str
    took: float | None = None
    """Seconds; None if not measured."""


def raised(error: BaseException, took: float | None) -> Raised:
    """Return the traceback of an exception as text to store, truncated at its beginning."""
    found, frames = shown(error), of_handler(trace_of(error))
    try:
        lines = "".join(traceback.format_exception(type(found), found, frames, limit=-FRAMES))
    except BaseException:  # noqa: BLE001 - an attribute that raises only sometimes
        lines = f"{error_text(error)}\n"
    trace = lines if len(lines) <= TRACE else f"…{lines[1 - TRACE :]}"
    return Raised(storable(trace, 2 * TRACE), took)


def of_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame outside this package, or the whole one."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(PACKAGE):
        found = found.tb_next
    return found or trace


def _is_plain(error: BaseException, *, one_line: bool = False) -> bool:
    """Return whether an error and all its causes are readable, and few; maybe each in a line."""
    left, seen = [error], set[int]()
    try:
        while left and len(seen) <= LINKED:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if not (is_honest(each) and _is_readable(each, one_line=one_line)):
                return False
            linked = [_own(each, "__cause__"), _own(each, "__context__"), *members(each)]
            left += [one for one in linked if one is not None]
    except BaseException:  # noqa: BLE001 - as above
        return False
    return not left


def _is_readable(error: BaseException, *, one_line: bool) -> bool:
    notes = getattr(error, "__notes__", None) or ()
    texts = [str(error), *(notes if isinstance(notes, list | tuple) else [notes])]
    if not all(type(text) is str for text in texts) or sum(map(len, texts)) > READABLE:
        return False
    "".join(texts).encode()
    return not one_line or all(map(str.isprintable, texts))


def members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group; none of any other exception."""
    if not issubclass(type(error), BaseExceptionGroup):
        return ()
    found: tuple[BaseException, ...] = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
    return found


def _stand_in(
    error: BaseException, causes: int = CAUSES, show: Callable[[str], str] = str
) -> BaseException:
    """Return an exception with the text of an error, its notes, nearest causes and members."""
    text = show(message_of(error))
    inner = [_stand_in(each, 0, show) for each in members(error)[:causes]]
    base = ExceptionGroup if inner else Exception
    made = type(class_name(error), (base,), {"__module__": "builtins", "__str__": lambda _: text})
    found: BaseException = made(text, inner) if inner else made(text)
    for note in _notes(error):
        found.add_note(show(note))
    name = "__cause__" if _own(error, "__suppress_context__") else "__context__"
    before = _own(error, name)
    if causes and before is not None:
        setattr(found, name, _stand_in(before, causes - 1, show).with_traceback(trace_of(before)))
    return found


def _notes(error: BaseException) -> list[str]:
    """Return the first notes of an error; none if they cannot be read."""
    try:
        return [_bounded(note, LONGEST) for note in [*getattr(error, "__notes__", ())][:CAUSES]]
    except BaseException:  # noqa: BLE001 - as above
        return []


def _own(error: BaseException, name: str) -> Any:
    """Return an attribute of every exception, past an override of the class."""
    return BaseException.__dict__[name].__get__(error)


def _bounded(text: str, most: int) -> str:
    """Return a text of any subclass of str as plain str, with at most *most* characters."""
    return storable(str.__getitem__(text, slice(0, most + 1)), most)
