"""A public name that goes says so for long enough: it warns, works, and names its replacement."""

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import onceward
from onceward import deprecated
from onceward.deprecated import CALLS, NAMES, DeprecatedName, Deprecation

LATER = Deprecation(instead="onceward.Postbox", since="0.2.0", removed_in="0.4.0")


def number(text: str) -> tuple[int, ...]:
    """Return a release as numbers, which compare as releases do."""
    return tuple(map(int, re.findall(r"\d+", text)))


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Declare a name of the package that was renamed."""
    monkeypatch.setitem(NAMES, "onceward.Letterbox", LATER)
    yield "Letterbox"
    assert "Letterbox" not in vars(onceward)


def test_a_renamed_class_warns_and_works(renamed: str) -> None:
    """The warning stands at the user's line, and names replacement and release, each time."""
    for _ in range(2):
        with pytest.warns(DeprecatedName) as told:
            found = getattr(onceward, renamed)
        assert onceward.Postbox is found
        [warning] = told
        assert __file__ == warning.filename
        assert (
            "onceward.Letterbox is deprecated since onceward 0.2.0 and goes with 0.4.0: use "
            in (str(warning.message))
        )
        assert isinstance(warning.message, DeprecatedName)
        assert ("onceward.Postbox", "0.4.0") == (
            warning.message.instead,
            warning.message.removed_in,
        )


def test_it_can_be_imported_by_its_old_name(tmp_path: Path) -> None:
    """``from onceward import`` an old name: an error only where warnings are errors."""
    program = tmp_path / "program.py"
    program.write_text(
        "from onceward.deprecated import NAMES, Deprecation\n"
        "NAMES['onceward.Letterbox'] = Deprecation(\n"
        "    instead='onceward.Postbox', since='0.2.0', removed_in='0.4.0')\n"
        "from onceward import Letterbox\n"
        "print(Letterbox.__name__)\n",
        encoding="utf-8",
    )
    quiet, strict = (
        subprocess.run(
            [sys.executable, *flags, program], capture_output=True, text=True, check=False
        )
        for flags in ((), ("-W", "error::DeprecationWarning"))
    )

    assert (0, "Postbox\n") == (quiet.returncode, quiet.stdout)
    assert 1 == strict.returncode
    assert "DeprecatedName: onceward.Letterbox" in strict.stderr


def test_a_deprecated_function_warns_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its name, its arguments and its result."""
    monkeypatch.setattr(deprecated, "CALLS", dict[str, Deprecation]())

    @deprecated.deprecated(instead="send", since="0.2.0", removed_in="0.4.0")
    def post(body: str, *, times: int = 1) -> str:
        """Send."""
        return body * times

    with pytest.warns(DeprecatedName, match=r"post is deprecated .* use send") as told:
        assert "aa" == post("a", times=2)
    assert [__file__] == [each.filename for each in told]
    assert ("post", "Send.") == (post.__name__, post.__doc__)
    assert [f"{__name__}.{post.__qualname__}"] == list(deprecated.CALLS)


def test_a_name_that_never_was_is_an_error() -> None:
    """Without a declaration there is no such name."""
    with pytest.raises(AttributeError, match="module 'onceward' has no attribute 'Letterbox'"):
        onceward.Letterbox  # noqa: B018


def test_each_declared_name_warns() -> None:
    """Every name in the table is found, and says what stands in it."""
    for path, found in NAMES.items():
        module, _, name = path.rpartition(".")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            deprecated.attribute(module, name)
        assert [found.removed_in] == [each.message.removed_in for each in told], path  # type: ignore[union-attr]


def test_a_declaration_is_kept_long_enough_and_no_longer() -> None:
    """A name warns for a minor version at least; the release that it names removes it."""
    declared = NAMES | CALLS

    assert [] == late(declared, version("onceward"))
    assert [] == [path for path, each in declared.items() if not is_long_enough(each)]


@pytest.mark.parametrize(
    ("now", "expected"), [("0.2.0", []), ("0.3.9", []), ("0.4.0", ["a.b"]), ("1.0.0", ["a.b"])]
)
def test_a_name_that_outlives_its_release_is_found(now: str, expected: list[str]) -> None:
    """Who sets the version of that release removes the name in the same commit."""
    assert expected == late({"a.b": LATER}, now)


@pytest.mark.parametrize(
    ("since", "removed_in", "expected"),
    [("0.2.0", "0.3.0", False), ("0.2.0", "0.4.0", True), ("0.2.0", "1.0.0", True)],
)
def test_a_name_that_goes_too_early_is_found(
    since: str, removed_in: str, *, expected: bool
) -> None:
    """Between the release that deprecates and the one that removes, there is a minor version."""
    given = Deprecation(instead="x", since=since, removed_in=removed_in)

    assert expected == is_long_enough(given)


def late(declared: dict[str, Deprecation], now: str) -> list[str]:
    """Return the names that a release still has, though they went with it."""
    return [path for path, each in declared.items() if number(each.removed_in) <= number(now)]


def is_long_enough(given: Deprecation) -> bool:
    """Return whether a minor version lies between deprecating and removing."""
    (major, minor), (then, last) = number(given.since)[:2], number(given.removed_in)[:2]
    return then > major or last >= minor + 2
