"""A misspelt keyword is refused with the one that was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox
from onceward.testing import Harness


def postbox(folder: Path, **options: Any) -> Postbox:
    """Open a postbox without engines."""
    return Postbox(folder / "a.db", agent="a", start=False, **options)


def tick(body: Any) -> None:
    """Handle nothing."""


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (lambda box, given: Postbox(box.file.path, **given), "agnet", "agent"),
        (lambda box, given: Postbox(box.file.path, **given), "leese", "lease"),
        (lambda box, given: Postbox(box.file.path, **given), "transport", "transports"),
        (lambda _, given: Harness("a", **given), "worker", "workers"),
        (lambda _, given: Agent("a", **given), "unhandld", "unhandled"),
        (lambda _, given: Agent("a").on("b", **given), "timout", "timeout"),
        (lambda _, given: Agent("a").every("1h", **given)(tick), "atempts", "attempts"),
        (lambda _, given: Agent("a").runs(**given), "debounse", "debounce"),
        (lambda box, given: box.send("a", 1, **given), "prioriti", "priority"),
        (lambda box, given: box.send_many([("a", 1)], **given), "headres", "headers"),
        (lambda box, given: box.publish("t", 1, **given), "tll", "ttl"),
        (lambda box, given: box.history(**given), "sendr", "sender"),
        (lambda box, given: box.channels.create("c", **given), "stickey", "sticky"),
        (lambda box, given: box.runs.set("s", **given), "overflw", "overflow"),
        (lambda box, given: box.schedules.add("s", every=9, **given), "toppic", "topic"),
    ],
)
def test_what_was_meant_is_named(
    tmp_path: Path, call: Callable[[Postbox, dict[str, Any]], object], given: str, meant: str
) -> None:
    """Nothing is written: the keyword could have changed what is sent, or how."""
    with (
        postbox(tmp_path) as box,
        pytest.raises((TypeError, ValueError), match=rf"did you mean {meant}\?"),
    ):
        call(box, {given: 1})


def test_a_keyword_like_no_other_is_refused_with_all(tmp_path: Path) -> None:
    """Where nothing is near, the list says what there is."""
    with pytest.raises(ValueError, match=r"a postbox has no option xyzzy: there are agent, "):
        postbox(tmp_path, xyzzy=1)

    assert [] == list(tmp_path.iterdir())


def test_a_mailbox_that_is_missing_says_what_makes_it(tmp_path: Path) -> None:
    """A name alone opens one that is there; making one needs a word more."""
    with (
        postbox(tmp_path) as box,
        pytest.raises(LookupError, match="to create a public one set public=True"),
    ):
        box.mailboxes.ensure("m")
