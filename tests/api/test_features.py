"""The list of features: what a postbox puts together, and in which order."""

import inspect
from pathlib import Path

import onceward.features
from onceward.api.features import FEATURES, Feature

FOLDER = Path(str(onceward.features.__file__)).parent


def test_each_feature_is_a_folder_that_stands_once_in_the_list() -> None:
    """The name of a feature leads to its code; none is put together twice."""
    names = [each.name for each in FEATURES]

    assert sorted(set(names)) == sorted(names)
    assert [] == [name for name in names if not (FOLDER / name / "__init__.py").exists()]


def test_a_feature_that_says_nothing_adds_nothing() -> None:
    """Every part may be left out, so a new feature names only what it needs."""
    bare = Feature(name="toy")
    parts = [each for each in inspect.signature(Feature).parameters if each != "name"]

    assert [{}] == [found for each in parts if (found := getattr(bare, each)) is not None]
