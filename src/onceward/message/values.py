"""
Make frozen dataclasses at a quarter of the price.

The standard decorator compiles six methods a class, each on its own: for a hundred
classes that was a quarter of ``import onceward``. Here a class gets one compiled
method, ``__init__``, and shares all others. Type checkers see the standard one.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as standard
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:

    def dataclass(
        *, frozen: bool = False, slots: bool, kw_only: bool = False
    ) -> Callable[[type], type]:
        """Return a decorator that does what the standard one does with these options."""
        if not frozen:
            return standard(slots=slots, kw_only=kw_only)
        bare = standard(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        return lambda kind: _with_methods(bare(kind), vars(kind))


def _with_methods(made: Any, own: Mapping[str, Any]) -> type:
    made.__init__ = _init(made)
    made._facts = attrgetter("__class__", *(field.name for field in fields(made)))
    for name, method in SHARED.items():
        if name not in own and getattr(made, name, None) is not method:
            setattr(made, name, method)
    value: type = made
    return value


def _init(kind: Any) -> Callable[..., None]:
    scope: dict[str, Any] = {"_set": object.__setattr__}
    parameters, lines = ["self"], list[str]()
    for field in sorted(fields(kind), key=lambda field: bool(field.kw_only)):
        if field.default_factory is not MISSING or not field.init:
            msg = f"{kind.__name__}.{field.name}: dataclasses makes classes with such fields"
            raise TypeError(msg)
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        has_default = field.default is not MISSING
        scope[f"_{field.name}"] = field.default
        parameters.append(f"{field.name}=_{field.name}" if has_default else field.name)
        lines.append(f" _set(self, {field.name!r}, {field.name})")
    if hasattr(kind, "__post_init__"):
        lines.append(" self.__post_init__()")
    text = "\n".join((f"def __init__({', '.join(parameters)}):", *(lines or [" pass"])))
    exec(text, scope)  # noqa: S102 - as the standard decorator does
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields(kind)} | {"return": None}
    return init


class _Shared:
    """The methods of every value."""

    _facts: Callable[[object], tuple[Any, ...]]
    """Returns the class and the fields; in C, because values are compared on hot paths."""

    def __repr__(self) -> str:
        """Name the class and every field."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({facts})"

    def __eq__(self, other: object) -> bool:
        """Whether *other* is of the same class and holds the same."""
        if type(other) is not type(self):
            return NotImplemented
        return self._facts(self) == self._facts(other)

    def __hash__(self) -> int:
        """Hash the fields."""
        return hash(self._facts(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: values are frozen."""
        msg = f"cannot assign to field {name!r}"
        raise FrozenInstanceError(msg)

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: values are frozen."""
        msg = f"cannot delete field {name!r}"
        raise FrozenInstanceError(msg)

    def __getstate__(self) -> list[Any]:
        """Return the fields, for copying and pickling."""
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def __setstate__(self, state: list[Any]) -> None:
        """Set the fields of a copy."""
        for field, value in zip(fields(self), state, strict=True):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, value)


SHARED: Final = {name: method for name, method in vars(_Shared).items() if callable(method)}
