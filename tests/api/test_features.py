"""The list of features: what a postbox puts together, and in which order."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path

import onceward.features
from onceward.api.features import FEATURES
from onceward.core.contract import Feature, Late

COMPOSED = ("arrives", "claims", "calls", "due", "upkeep")
"""Parts of several members."""
ALONE = {"claims.gates", "calls.guard", "upkeep.expire", "upkeep.held", "upkeep.keep"}
"""Members that one feature gives: none may join."""
FOLDER = Path(str(onceward.features.__file__)).parent


def test_each_feature_is_a_folder_that_stands_once_in_the_list() -> None:
    """No feature is left out, and none is put together twice."""
    names = [each.name for each in FEATURES]

    assert sorted(set(names)) == sorted(names)
    assert sorted(names) == sorted(each.parent.name for each in FOLDER.glob("*/__init__.py"))


def test_a_feature_that_says_nothing_adds_nothing() -> None:
    """Every part may be left out, so a new feature names only what it needs."""
    bare = Feature(name="toy")
    parts = [each for each in signature(Feature).parameters if each != "name"]

    assert [{}] == [found for each in parts if (found := getattr(bare, each)) is not None]


def test_each_part_is_given_by_several_features() -> None:
    """A part that one feature alone gives is that feature's own affair, not one of the contract."""
    bare = Feature(name="toy")
    parts = [each for each in signature(Feature).parameters if each != "name"]
    users = {
        part: [each.name for each in FEATURES if getattr(each, part) != getattr(bare, part)]
        for part in parts
    }

    assert 7 <= len(users) <= 9
    assert {} == {part: names for part, names in users.items() if len(names) < 2}


def _users(part: str) -> dict[str, int]:
    """Return how many features give each member of a part."""
    given = [found for each in FEATURES if (found := getattr(each, part)) is not None]
    kind, bare = type(given[0]), given[0]._field_defaults
    return {
        f"{part}.{name}": sum(getattr(each, name) != bare.get(name) for each in given)
        for name in kind._fields
    }


def test_no_more_members_of_a_part_are_given_by_one_feature() -> None:
    """What one feature alone needs makes the contract longer for all others."""
    users = {name: count for part in COMPOSED for name, count in _users(part).items()}

    assert ALONE == {name for name, count in users.items() if count < 2}


def _late(value: object) -> list[Late]:
    """Return the names of functions in a part of a feature, however deep they stand."""
    if isinstance(value, Late):
        return [value]
    if isinstance(value, Mapping):
        return _late(tuple(value.values()))
    if is_dataclass(value):
        return _late(tuple(getattr(value, each.name) for each in fields(value)))
    return [late for each in value for late in _late(each)] if isinstance(value, tuple) else []


def test_each_late_function_is_one_of_its_own_feature() -> None:
    """A name in the list leads to a function, or a class, in the folder of the feature."""
    found = [(each.name, late) for each in FEATURES for late in _late(each)]

    assert 15 <= len(found)
    assert [] == [
        (feature, late)
        for feature, late in found
        if late.folder != f"onceward.features.{feature}" or not callable(late.load())
    ]
