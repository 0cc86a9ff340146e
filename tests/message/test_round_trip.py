"""A body that is sent is the body that its recipient reads; what JSON loses is refused."""

import copy
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    ConfigDict,
    Field,
    Json,
    RootModel,
    SecretStr,
    SerializeAsAny,
    TypeAdapter,
    computed_field,
    field_serializer,
    field_validator,
)
from pydantic_core import from_json
from typing_extensions import TypedDict

from onceward import Msg
from onceward.errors import InvalidMessage
from onceward.message.body import decode, encode
from onceward.message.round_trip import is_lossless, lost


class Animal(Msg):
    """A class with a subclass."""

    name: str


class Dog(Animal):
    """A subclass with one field more."""

    tricks: int = 0


class Puppy(Animal):
    """A subclass without another field."""


@dataclass
class Part:
    """A dataclass with a subclass."""

    n: int


@dataclass
class HeavyPart(Part):
    """A subclass with one field more."""

    kilos: int = 1


class Owner(Msg):
    """Fields typed with base classes."""

    pet: Animal | None = None
    pets: list[Animal] = Field(default_factory=list)
    by_name: dict[str, Animal] = Field(default_factory=dict)
    part: Part | None = None


class AnyOwner(Msg):
    """A field that writes each field of a subclass, and is read as its base."""

    pet: SerializeAsAny[Animal]


class Login(Msg):
    """A value that pydantic masks."""

    password: SecretStr


class OpenLogin(Msg):
    """A masked value that its class writes."""

    password: SecretStr

    @field_serializer("password")
    def _shown(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Outward(Msg):
    """A field that is written under a name under which it is not read."""

    cents: int = Field(serialization_alias="amount")


class Inward(Msg):
    """A field that is read under a name under which it is not written."""

    cents: int = Field(validation_alias="amount")


class Shape(Msg):
    """A computed field that the class forbids to read."""

    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        """Return the area."""
        return self.side**2


class OpenShape(Msg):
    """A computed field that is computed again."""

    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        """Return the area."""
        return self.side**2


class Hidden(Msg):
    """A field that is not written."""

    shown: int
    hidden: int = Field(default=0, exclude=True)


class Rounded(Msg):
    """A serializer that loses digits."""

    share: float

    @field_serializer("share")
    def _short(self, share: float) -> float:
        return round(share, 1)


class Doubled(Msg):
    """A validator that changes what it has changed before."""

    n: int

    @field_validator("n", mode="after")
    @classmethod
    def _double(cls, n: int) -> int:
        return n * 2


class Parsed(Msg):
    """JSON text that is written as its value."""

    data: Json[dict[str, int]]


class When(Msg):
    """A union in which text is always text."""

    at: datetime | str


class Loose(Msg):
    """A field of any type."""

    data: Any = None


class Small(Msg):
    """A number with a limit."""

    n: int = Field(ge=0)


class Kind(Enum):
    """Values that are names."""

    A = "a"


class Pair(NamedTuple):
    """A tuple with names."""

    a: int
    b: str


class Extra(TypedDict):
    """A dict with known keys."""

    n: int


class Cat(Msg):
    """One member of a union with a discriminator."""

    kind: Literal["cat"] = "cat"


class Fish(Msg):
    """The other member."""

    kind: Literal["fish"] = "fish"
    deep: int = 0


class Everything(Msg):
    """A field of each kind that is read as it was written."""

    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    day: date = date(2026, 1, 2)
    sum: Decimal = Decimal("1.10")
    key: UUID = UUID(int=7)
    kind: Kind = Kind.A
    pair: Pair = Pair(1, "b")
    path: PurePosixPath = PurePosixPath("/a")
    numbers: set[int] = Field(default_factory=lambda: {2, 1})
    typed: Extra = Field(default_factory=lambda: Extra(n=1))
    animal: Annotated[Cat | Fish, Field(discriminator="kind")] = Fish(deep=3)
    either: Cat | Fish | None = Fish(deep=3)
    numbered: dict[int, tuple[int, int]] = Field(default_factory=lambda: {1: (1, 2)})
    data: bytes = b"\xff"
    loose: Any = Field(default_factory=lambda: {"a": [1, 2]})
    renamed: int = Field(default=1, alias="other")


@dataclass
class Late:
    """A dataclass that computes a field."""

    n: int
    twice: int = field(init=False, default=0)
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.twice = self.n * factor


@dataclass
class Unchecked:
    """A dataclass, whose constructor checks nothing."""

    n: int
    day: date | None = None


class Root(RootModel[list[Animal]]):
    """A model that is a list."""


LOST: list[tuple[object, str]] = [
    (Owner(pet=Dog(name="a", tricks=3)), "pet: a Dog is read as Animal"),
    (Owner(pets=[Animal(name="a"), Dog(name="b")]), r"pets\[1\]: a Dog is read as Animal"),
    (Owner(by_name={"x": Dog(name="a")}), r"by_name\.x: a Dog is read as Animal"),
    (Owner(pet=Puppy(name="a")), "pet: a Puppy is read as Animal"),
    (Owner(part=HeavyPart(1)), "part: a HeavyPart is read as Part"),
    (AnyOwner(pet=Dog(name="a", tricks=1)), "pet: a Dog is read as Animal"),
    (Root([Dog(name="a")]), r"root\[0\]: a Dog is read as Animal"),
    (Login(password=SecretStr("x")), "password: JSON hides the value"),
    ({"p": SecretStr("x")}, "p: "),
    ([Login(password=SecretStr("x"))], r"\[0\]\.password: JSON hides the value"),
    (Loose(data=Login(password=SecretStr("x"))), r"data\.password: JSON hides the value"),
    (Outward(cents=1), "Outward cannot read it back: cents: Field required"),
    (Inward.model_validate({"amount": 1}), "Inward cannot read it back: amount: Field required"),
    (Shape(side=2), "Shape cannot read it back: area: Extra inputs"),
    (Hidden(shown=1, hidden=2), "hidden: 2 is read as 0"),
    (Rounded(share=0.25), "share: 0.25 is read as 0.2"),
    (Doubled(n=1), "n: 2 is read as 4"),
    (Parsed.model_validate({"data": '{"a":1}'}), "Parsed cannot read it back: data: JSON input"),
    (When(at=datetime(2026, 1, 2, tzinfo=UTC)), "at: datetime.datetime.* is read as '2026"),
    (Small(n=1).model_copy(update={"n": -1}), "Small cannot read it back: n: Input should be"),
    (Animal.model_construct(name=7), "Animal cannot read it back: name: Input should be"),
    (Unchecked("x"), "Unchecked cannot read it back: n: Input should be"),  # type: ignore[arg-type]
    (Unchecked("5"), "n: '5' is read as 5"),  # type: ignore[arg-type]
    (Late(1, factor=3), "twice: 3 is read as 2"),
]
KEPT: list[object] = [
    Owner(pet=Animal(name="a"), pets=[Animal(name="b")], part=Part(1)),
    OpenLogin(password=SecretStr("x")),
    OpenShape(side=2),
    Hidden(shown=1),
    Rounded(share=0.5),
    Everything(),
    Root([Animal(name="a")]),
    Late(1),
    Small(n=1),
]


@pytest.mark.parametrize(("body", "said"), LOST, ids=[type(each).__name__ for each, _ in LOST])
def test_what_a_recipient_would_not_get_is_refused(body: object, said: str) -> None:
    """The error names the field that the recipient, with the same class, would miss."""
    with pytest.raises(InvalidMessage, match=said):
        encode(body)


@pytest.mark.parametrize("body", KEPT, ids=lambda value: type(value).__name__)
def test_what_a_recipient_gets_is_sent(body: object) -> None:
    """Reading a body with its own class gives an equal value, of the same class."""
    assert body == decode(from_json(encode(body).text), None, type(body))


def test_untyped_values_become_what_json_has() -> None:
    """In a field without a type, tuples, dates and models arrive as lists, text and dicts."""
    data = {"a": (1, date(2026, 1, 2)), "b": Kind.A, "c": Decimal("1.5"), "d": Part(1)}

    assert {"a": [1, "2026-01-02"], "b": "a", "c": "1.5", "d": {"n": 1}} == from_json(
        encode(Loose(data=data)).text
    )["data"]


def test_a_value_that_its_type_reads_is_no_loss() -> None:
    """A dataclass checks nothing: the text of a date arrives as that date."""
    sent = Unchecked(1, "2026-01-02")  # type: ignore[arg-type]

    assert '{"n":1,"day":"2026-01-02"}' == encode(sent).text


class Flat(Msg):
    """Fields that cannot lose anything."""

    n: int
    name: str | None = None
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    tags: tuple[str, ...] = ()
    data: bytes = b""
    by_name: dict[str, list[int | str]] = Field(default_factory=dict)
    pet: Animal | None = None


@pytest.mark.parametrize(
    ("kind", "lossless"),
    [(Flat, True), (Part, True), (Owner, True), (Login, False), (Everything, False)]
    + [(type(body), False) for body, _ in LOST if type(body) in {Outward, Hidden, Rounded, Small}],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_only_classes_that_can_lose_values_are_read_back(kind: type, lossless: bool) -> None:
    """The schema of a class decides, once, whether its bodies are read back at each send."""
    assert lossless is is_lossless(TypeAdapter(kind).core_schema)


def test_a_later_subclass_is_found() -> None:
    """A class is checked from the moment on at which its field's class has a subclass."""

    class Bare(Msg):
        n: int = 0

    class Holder(Msg):
        bare: Bare

    before = encode(Holder(bare=Bare())).text

    class More(Bare):
        more: int = 1

    assert before == encode(Holder(bare=Bare())).text
    with pytest.raises(InvalidMessage, match="bare: a More is read as Bare"):
        encode(Holder(bare=More()))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_is_the_same_body(make: Callable[[Any], Any]) -> None:
    """A copy of a body is written alike."""
    body = Owner(pet=Animal(name="a"), by_name={"x": Animal(name="b")})

    assert encode(body).text == encode(make(body)).text


def test_a_class_that_was_imported_twice_is_one() -> None:
    """A script's own class and the one that another module imports from it have the same fields."""

    def imported() -> type[Msg]:
        class Turn(Msg):
            """What a model says."""

            answer: str

        return Turn

    script, module = imported(), imported()

    said = script.model_validate({"answer": "7"})

    assert [] == list(lost(said, module.model_validate({"answer": "7"}), typed=True))
    assert [] != list(lost(said, module.model_validate({"answer": "8"}), typed=True))
