"""The traceback of a failed call is text that a file stores."""

from __future__ import annotations

from onceward.message.traces import LONGEST, raised


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    """Its end names the error."""
    trace = raised(ValueError("x" * 2 * LONGEST + " end"), None).trace

    assert LONGEST == len(trace)
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
