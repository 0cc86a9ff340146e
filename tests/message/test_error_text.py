"""Text of exceptions: bounded, storable, and never an exception itself."""

from __future__ import annotations

import pytest

from onceward.message.error_text import (
    LONGEST,
    TRACE,
    error_text,
    exc_info,
    raised,
    safe_repr,
    shown,
    storable,
)


class Meta(type):
    """A metaclass that hides the name of its classes."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        """Exit."""
        raise SystemExit


class Nameless(Exception, metaclass=Meta):
    """Has a name that cannot be asked for."""


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("caf\ud83d", "caf\\ud83d"),
        ("a\0b", "a\\x00b"),
        ("x" * LONGEST, "x" * LONGEST),
        ("x" * (LONGEST + 1), "x" * (LONGEST - 1) + "…"),
    ],
)
def test_a_text_becomes_storable(text: str, stored: str) -> None:
    """It is cut at its end, and characters that SQLite or UTF-8 cannot hold are escapes."""
    assert stored == storable(text)


def test_a_class_is_named_past_its_metaclass() -> None:
    """By the name that Python itself prints."""
    assert "Nameless: x" == error_text(Nameless("x"))


def test_an_object_without_a_repr_is_named_by_its_class() -> None:
    """So that a log line can always name a hook."""

    class Silent:
        def __repr__(self) -> str:
            raise SystemExit

    assert "<Silent>" == safe_repr(Silent())


def test_an_ordinary_error_is_shown_itself() -> None:
    """With its class, its causes and its groups, as tools that collect errors need it."""
    error = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    error.__cause__ = OSError("c")

    assert error is shown(error)
    assert (ExceptionGroup, error, None) == exc_info(error, None)


def test_an_error_with_many_causes_is_shown_with_its_nearest() -> None:
    """Another exception stands in for it, of a class of the same name."""
    error = ValueError("last")
    for number in range(100):
        before, error = error, ValueError(str(number))
        error.__cause__ = before
    found, texts = shown(error), []
    while found is not None:
        texts.append(f"{type(found).__name__} {found}")
        found = found.__cause__  # type: ignore[assignment]

    assert [f"ValueError {number}" for number in (99, 98, 97, 96, 95, 94)] == texts


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    """Its end names the error."""
    trace = raised(ValueError("x" * 2 * TRACE + " end"), None).trace

    assert TRACE == len(trace)
    assert trace.startswith("…xxx")
    assert trace.endswith(" end\n")


def test_characters_without_a_code_in_utf_8_are_written_as_escapes() -> None:
    """SQLite would refuse the text, and the failure could not be booked."""
    trace = raised(ValueError("half of a \ud83d"), None).trace

    assert "ValueError: half of a \\ud83d\n" == trace


def test_each_exception_of_a_chain_has_its_last_frames() -> None:
    """However deep the call was, the traceback is short."""

    def down(left: int) -> None:
        deeper(left - 1)

    def deeper(left: int) -> None:
        if left < 0:
            msg = "deepest"
            raise KeyError(msg)
        down(left)

    try:
        down(200)
    except KeyError as error:
        trace = raised(error, 0.5).trace

    assert trace.count("in deep") < 25
    assert trace.endswith("KeyError: 'deepest'\n")
