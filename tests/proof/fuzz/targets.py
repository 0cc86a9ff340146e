"""
Parsers of foreign input, each a function of bytes that returns or raises unexpectedly.

The same functions serve Hypothesis and coverage-guided fuzzers. What a target
may raise by contract it catches itself.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import apsw
from tests.proof.fuzz.http_door import HttpDoor

from onceward.api.postbox import Postbox
from onceward.core.accept.judge import parse_frames
from onceward.core.accept.policy import InboxPolicy
from onceward.errors import InvalidArgument, InvalidMessage, InvalidParcel, Refused, Unreachable
from onceward.file.environment import load_settings
from onceward.message import wire
from onceward.message.frame import Frame, digest
from onceward.message.names import agent_name, plain_text, rank
from onceward.message.parcel import Parcel, ParcelFrame
from onceward.message.settings import Settings
from onceward.message.topics import check_pattern, check_topic, matches
from onceward.ops.cli import app, main

CODES: Final = {0, 1, 2, 3, 4, 5, 6, 7}
ENDLESS: Final = frozenset(
    {
        *("work", "relay", "serve", "inspect", "mcp", "top", "ship"),
        *("demo", "bench", "prove", "fleet"),
        "new",  # makes the folder that it is told, wherever that is
    }
)
COMMANDS: Final = tuple(command for command in app.COMMANDS if command.split()[0] not in ENDLESS)
"""Commands that end by themselves, and soon."""
COLUMNS: Final = (
    *("recipient", "type", "body", "session", "topic", "key"),
    *("priority", "ttl", "delay", "ordering_key", "correlation_id", "id"),
)
INSERT: Final = (
    f"INSERT INTO onceward_send ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
)
LAST: Final = "SELECT id, frame, json_valid(frame) FROM onceward_outbox ORDER BY seq DESC LIMIT 1"
SEP: Final = "\x1f"
"""Stands between the parts of a structured input."""
NAME_MAX: Final = 128


PUSHED: Final = Parcel(
    sender="a",
    recipient="b",
    epoch="e",
    number=1,
    previous="",
    frames=(ParcelFrame("0", "{}", digest("{}")),),
)
"""The parcel that answers are read for."""


class Surprise(AssertionError):
    """A target accepted what it must not, or answered what it must not."""


def _insist(what: str, *, holds: bool) -> None:
    if not holds:
        raise Surprise(what)


def frame(raw: bytes) -> None:
    """
    Read bytes as a frame.

    What parses can be read in every property, and written and read again.
    """
    try:
        found = Frame.parse(raw)
    except InvalidMessage:
        return
    seen = _seen(found)
    again = Frame.parse(found.model_dump_json(exclude_unset=True))
    _insist(
        "a frame changed by being written",
        holds=seen
        == (again.sender, again.lane, again.priority_name, again.headers, again.expires_at),
    )


def _seen(found: Frame) -> tuple[Any, ...]:
    return found.sender, found.lane, found.priority_name, found.headers, found.expires_at


def parcel(raw: bytes) -> None:
    """
    Examine lines of bytes as the frames of a parcel.

    Each is a frame for us from its sender, or has a problem to its name.
    """
    texts = [
        line.decode("utf-8", "surrogatepass") if _utf8(line) else line.decode("latin-1")
        for line in raw.split(b"\n")
    ]
    carried = tuple(
        ParcelFrame(str(n), text, digest(text)) for n, text in enumerate(texts) if _encodable(text)
    )
    pushed = Parcel(sender="a", recipient="b", epoch="e", number=1, previous="", frames=carried)
    try:
        examined = parse_frames(pushed, InboxPolicy(agent="b", durability="safe", max_body=1000))
    except Unreachable:
        return
    for each in examined:
        _insist("neither a frame nor a problem", holds=(each.frame is None) == bool(each.problem))
        if each.frame is not None:
            _insist(
                "a frame of another agent",
                holds=(each.frame.sender, each.frame.recipient) == ("a", "b"),
            )


def _utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def wire_parcel(raw: bytes) -> None:
    """
    Take bytes from a network for a parcel.

    What is decoded can be encoded again, and the door of the recipient judges it.
    """
    try:
        found = wire.decode_parcel(raw)
    except InvalidParcel:
        return
    _insist("a parcel changed by travelling", holds=_again(found) == found)
    with suppress(Unreachable, Refused):
        parse_frames(found, InboxPolicy(agent="b", durability="safe", max_body=1000))


def _again(found: Parcel) -> Parcel:
    return wire.decode_parcel(wire.encode_parcel(found))


def wire_answer(raw: bytes) -> None:
    """
    Take bytes from a network for the answer to a parcel of one frame.

    What is decoded speaks of that frame only, and can be encoded again.
    """
    try:
        found = wire.decode_answer(raw, PUSHED)
    except InvalidParcel:
        return
    ids = {receipt.id for receipt in found.receipts}
    _insist("receipts for other frames", holds=ids <= {PUSHED.last_id})
    again = wire.decode_answer(wire.encode_answer(found, PUSHED), PUSHED)
    _insist("an answer changed by travelling", holds=again == found)


def name(raw: bytes) -> None:
    """Take bytes for a name: what passes is short, printable, and no path."""
    text = raw.decode("utf-8", "replace")
    for check in (agent_name, lambda value: plain_text("session", value), rank):
        try:
            check(text)
        except InvalidMessage:
            continue
        if check is agent_name:
            harmless = (
                len(text) <= NAME_MAX
                and Path(text).name == text
                and text not in {".", ".."}
                and text.isprintable()
            )
            _insist(f"{text!r} passed for an agent's name", holds=harmless)


def topic(raw: bytes) -> None:
    """
    Match a pattern against a topic.

    The answer is that of a regular expression written by the rules.
    """
    pattern, _, subject = raw.decode("utf-8", "replace").partition(SEP)
    try:
        check_pattern(pattern)
        check_topic(subject)
    except InvalidMessage:
        return
    segments = [r"[^.]+" if part == "*" else re.escape(part) for part in pattern.split(".")]
    if segments[-1] == re.escape("#"):
        head = r"\.".join(segments[:-1])
        rule = rf"{head}(\..+)?" if head else r".+"
    else:
        rule = r"\.".join(segments)
    expected = re.fullmatch(rule, subject, re.DOTALL) is not None
    _insist(f"{pattern!r} against {subject!r}", holds=matches(pattern, subject) == expected)


def settings(raw: bytes) -> None:
    """
    Read pairs as environment and keywords.

    Settings within their bounds, or one error that callers know.
    """
    parts = raw.decode("utf-8", "replace").split(SEP)
    values = dict(zip(parts[::2], parts[1::2], strict=False))
    env = {f"ONCEWARD_{key.upper()}": value for key, value in values.items()}
    for given, named in ((values, {}), ({}, env)):
        try:
            found = load_settings(None, given, env=named)
        except InvalidArgument:
            continue
        _insist(
            "settings that are not what they say",
            holds=Settings.model_validate(found.model_dump()) == found,
        )


class SqlSend:
    """
    Rows from strangers into the view ``send``.

    Refused by the schema, or a row whose frame is JSON.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="onceward-fuzz-")
        self._box = Postbox(Path(self._folder.name) / "ada.db", agent="ada", start=False)
        self._con = apsw.Connection(str(self._box.file.path))

    def __call__(self, raw: bytes) -> None:
        """Insert one row, and take it back."""
        values = [
            _value(part) for part in raw.decode("utf-8", "replace").split(SEP)[: len(COLUMNS)]
        ]
        values += [None] * (len(COLUMNS) - len(values))
        self._con.execute("BEGIN IMMEDIATE")
        try:
            self._con.execute(INSERT, values)
            [(_, text, valid)] = self._con.execute(LAST).fetchall()
            _insist("a frame that is not JSON", holds=bool(valid))
            frame(str(text).encode())
        except (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError):
            return
        finally:
            self._con.execute("ROLLBACK")

    def close(self) -> None:
        """Delete the file."""
        self._con.close()
        self._box.close()
        self._folder.cleanup()


def _value(text: str) -> Any:
    """Return one value of a row: NULL, a number or a blob where the text says so."""
    if text in {"", "\x00"}:
        return None
    if text[0] == "\x01":
        return text[1:].encode()
    try:
        found = json.loads(text) if text[0] in "-0123456789" else text
    except ValueError:
        return text
    return (
        found
        if isinstance(found, str | float) or (isinstance(found, int) and abs(found) < 1 << 63)
        else text
    )


class Cli:
    """
    Command lines from strangers.

    Always one of the documented exit codes, and no file outside of the home.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="onceward-fuzz-")
        self._home = Path(self._folder.name) / "outer" / "home"
        self._file = self._home / "ada.db"
        self._file.parent.mkdir(parents=True)
        with Postbox(self._file, agent="ada", start=False, hold_unknown=True) as box:
            box.send("bob", {"n": 1})

    def __call__(self, raw: bytes) -> None:
        """Run one command in the home, with its one agent as the default, and an empty stdin."""
        command, *words = [part for part in raw.decode("utf-8", "replace").split(SEP) if part] or [
            "ls"
        ]
        tokens = [*command.split(), *words] if command in COMMANDS else ["ls", command, *words]
        place = {"ONCEWARD_DB": str(self._file), "ONCEWARD_HOME": str(self._home)}
        with ExitStack() as stack:
            stack.enter_context(chdir(self._home))
            stack.enter_context(patch.dict(os.environ, place))
            stack.enter_context(patch.object(sys, "stdin", io.StringIO("")))
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
            code = main(tokens)
        _insist(f"exit code {code} of {tokens}", holds=code in CODES)
        _insist(
            f"{tokens} left something outside",
            holds=[self._home] == list(self._home.parent.iterdir()),
        )

    def close(self) -> None:
        """Delete the home."""
        self._folder.cleanup()


Target = Callable[[bytes], None]
PLAIN: Final[dict[str, Target]] = {
    "frame": frame,
    "parcel": parcel,
    "wire_parcel": wire_parcel,
    "wire_answer": wire_answer,
    "name": name,
    "topic": topic,
    "settings": settings,
}
"""Targets that need no file."""
FILED: Final[dict[str, Callable[[], Any]]] = {
    "sql_send": SqlSend,
    "cli": Cli,
    "http_door": HttpDoor,
}
"""Targets that need one: call to open, ``close`` after use."""
