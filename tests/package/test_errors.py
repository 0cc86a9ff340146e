"""One error tree: each class says whether trying again helps, and what to do."""

import inspect
import re

import pytest

from onceward import errors

TREE = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__
]
ERRORS = [cls for cls in TREE if not issubclass(cls, errors.HandlerSignal)]
CAUSE_AND_CURE = re.compile(r"\w[:;.,]\s+\w")


def test_there_is_one_root() -> None:
    """
    ``except OncewardError`` catches everything of ours.

    Only what handlers raise to speak is not an error.
    """
    assert [] == [cls for cls in ERRORS if not issubclass(cls, errors.OncewardError)]


@pytest.mark.parametrize("cls", ERRORS)
def test_every_error_says_whether_trying_again_helps(cls: type[errors.OncewardError]) -> None:
    """``retryable`` is a plain yes or no on the class, known without an instance."""
    assert cls.retryable is True or cls.retryable is False


@pytest.mark.parametrize("cls", TREE)
def test_every_error_says_what_to_do(cls: type[Exception]) -> None:
    """The docstring is the class's own and names the cause and then the cure."""
    text = cls.__dict__.get("__doc__") or ""

    assert CAUSE_AND_CURE.search(text), f"{cls.__name__}: say what happened, then what to do"


def test_the_drawing_shows_the_whole_tree() -> None:
    """The tree drawn at the top of the file names every class of it."""
    drawn = set(re.findall(r"\b[A-Z]\w+", (errors.__doc__ or "").partition("Each class")[0]))

    assert [] == sorted(cls.__name__ for cls in ERRORS if cls.__name__ not in drawn)
