"""A frozen class of ``model.values`` does what one of the standard decorator does."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest

from onceward.message import values

Make = Callable[..., Callable[[type], Any]]


class Pair(NamedTuple):
    """The same classes, made by both decorators."""

    ours: Any
    standard: Any


def pair(make: Callable[[Make], Any]) -> Pair:
    """Return what *make* makes with each decorator."""
    return Pair(make(values.dataclass), make(dataclasses.dataclass))


def _point(dataclass: Make) -> Any:
    @dataclass(frozen=True, slots=True)
    class Point:
        """A place."""

        unit: ClassVar[str] = "mm"
        x: int
        y: int = 2

        @property
        def total(self) -> int:
            """Return the sum."""
            return self.x + self.y

    return Point


def _named(dataclass: Make) -> Any:
    @dataclass(frozen=True, slots=True)
    class Base:
        """A base."""

        x: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Base):
        """A derived class with names."""

        name: str
        length: int | None = None

    return Named


def _own(dataclass: Make) -> Any:
    @dataclass(frozen=True, slots=True)
    class Own:
        """A class with methods of its own."""

        x: int

        def __post_init__(self) -> None:
            """Refuse what is too small."""
            if self.x < 0:
                raise ValueError(self.x)

        def __repr__(self) -> str:
            """Say little."""
            return "own"

    return Own


POINT, NAMED, OWN = pair(_point), pair(_named), pair(_own)


@values.dataclass(frozen=True, slots=True)
class Stored:
    """A class that a pickle finds by its name."""

    x: int
    y: str = "y"


@pytest.mark.parametrize("kinds", [POINT, NAMED, OWN])
def test_the_signature_is_the_standard_one(kinds: Pair) -> None:
    """Order, defaults, keyword-only fields and annotations."""
    assert str(inspect.signature(kinds.standard)) == str(inspect.signature(kinds.ours))


@pytest.mark.parametrize("kinds", [POINT, NAMED, OWN])
def test_the_parts_are_the_standard_ones(kinds: Pair) -> None:
    """Fields, slots, match arguments, name and docstring."""

    def parts(kind: Any) -> list[object]:
        names = ("__slots__", "__match_args__", "__name__", "__qualname__", "__doc__")
        fields = [(field.name, field.default) for field in dataclasses.fields(kind)]
        return [fields, *(getattr(kind, name) for name in names)]

    assert parts(kinds.standard) == parts(kinds.ours)


def test_values_are_shown_as_the_standard_ones() -> None:
    """Qualified name and every field, unless the class has a text of its own."""
    for kinds, given in ((POINT, {"x": 1}), (NAMED, {"x": 1, "name": "n"}), (OWN, {"x": 1})):
        assert repr(kinds.standard(**given)) == repr(kinds.ours(**given))


def test_values_are_compared_by_class_and_fields() -> None:
    """Equal ones hash alike; a class derived from another is not that class."""
    point, named = POINT.ours, NAMED.ours

    assert (True, False, False) == (
        point(1) == point(1, 2),
        point(1) == point(2),
        point(1) == (1, 2),
    )
    assert 1 == len({point(1), point(1, 2)})
    assert named(x=1, name="n") != named.__mro__[1](1)


@pytest.mark.parametrize("kinds", [POINT, NAMED])
def test_a_field_is_never_changed(kinds: Pair) -> None:
    """Assignment and deletion raise what they raise of a standard class."""
    value = kinds.ours(x=1, **({"name": "n"} if kinds is NAMED else {}))

    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        value.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del value.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.z = 2
    assert 1 == value.x


def test_values_are_copied_pickled_and_replaced() -> None:
    """By their fields."""
    stored = Stored(1)

    assert stored == copy.copy(stored) == copy.deepcopy(stored)
    assert stored == pickle.loads(pickle.dumps(stored))  # noqa: S301 - our own bytes
    assert Stored(1, "z") == dataclasses.replace(stored, y="z")
    assert {"x": 1, "y": "y"} == dataclasses.asdict(stored)


def test_a_check_of_the_class_is_run() -> None:
    """``__post_init__`` refuses."""
    with pytest.raises(ValueError, match="-1"):
        OWN.ours(-1)


def test_what_is_not_frozen_is_a_standard_class() -> None:
    """It is compared, shown and changed as those are."""

    @values.dataclass(slots=True)
    class Count:
        """A number that changes."""

        n: int = 0
        names: list[str] = dataclasses.field(default_factory=list)

    count = Count()
    count.n += 1

    assert Count(1, []) == count


def test_a_field_with_a_factory_is_refused() -> None:
    """At the class statement: frozen values hold nothing that changes."""
    with pytest.raises(TypeError, match=r"Bag\.names"):

        @values.dataclass(frozen=True, slots=True)
        class Bag:
            """A value that would hold a list."""

            names: list[str] = dataclasses.field(default_factory=list)
