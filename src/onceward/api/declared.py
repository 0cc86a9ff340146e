"""Send to a handler through its own function: ``pay.send(box, invoice)`` has the types of *pay*."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from typing_extensions import TypeForm

from onceward.errors import InvalidArgument
from onceward.message.body import Msg
from onceward.message.names import quoted
from onceward.message.options import SendOptions
from onceward.message.times import Span
from onceward.message.topics import WILD

B_contra = TypeVar("B_contra", contravariant=True)
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


class Sends(Protocol[S_co]):
    """A postbox, session, transaction or context that sends, sync or async."""

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> S_co:
        """Send one message."""
        ...


class Asks(Protocol):
    """A postbox, session, context or run that asks."""

    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = ...,
        **options: Unpack[SendOptions],
    ) -> T:
        """Send a request and return its reply."""
        ...


class AsksLater(Protocol):
    """The same, awaited."""

    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = ...,
        **options: Unpack[SendOptions],
    ) -> Coroutine[Any, Any, T]:
        """Send a request and return its reply."""
        ...


class DeclaredHandler(Protocol[B_contra, P, C_co, R_co]):
    """A function that handles messages of an agent; it is called as it was before."""

    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Call the plain function."""
        ...

    def send(
        self,
        box: Sends[S],
        body: B_contra,
        /,
        *,
        to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> S:
        """Send *body* to its agent, or to the agent *to*; return what ``box.send`` returns."""
        ...

    @overload
    def ask(
        self,
        box: Asks,
        body: B_contra,
        /,
        *,
        to: str | None = None,
        timeout: Span = 30.0,
        **options: Unpack[SendOptions],
    ) -> R_co: ...
    @overload
    def ask(
        self,
        box: AsksLater,
        body: B_contra,
        /,
        *,
        to: str | None = None,
        timeout: Span = 30.0,
        **options: Unpack[SendOptions],
    ) -> Coroutine[Any, Any, R_co]: ...
    def ask(self, box: Any, body: B_contra, /, **options: Any) -> Any:
        """Send *body*, and return the reply as the type that the handler is annotated to return."""
        ...


class Declare(Protocol[B_contra]):
    """Declares a function as a handler, and returns it."""

    @overload
    def __call__(
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredHandler[B_contra, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> DeclaredHandler[B_contra, P, R, R]: ...


def with_send(call: F, agent: str, what: type | str) -> F:
    """Give a function ``send`` and ``ask``; other callables stay as they are."""
    if isinstance(call, types.FunctionType):
        way = _Way(call, agent, what)
        vars(call).update(send=way.send, ask=way.ask)
    return call


class _Way:
    """The way to one handler: its agent, and the type that its pattern names."""

    def __init__(self, call: Callable[..., Any], agent: str, what: type | str) -> None:
        self._call, self._agent = call, agent
        self._type = what if isinstance(what, str) and WILD.isdisjoint(what) else None

    def send(self, box: Any, body: object, /, *, to: str | None = None, **options: Any) -> Any:
        """Send *body*; see ``DeclaredHandler.send``."""
        return box.send(self._agent if to is None else to, body, **self._typed(body, options))

    def ask(self, box: Any, body: object, /, *, to: str | None = None, **options: Any) -> Any:
        """Send *body* and return the reply; see ``DeclaredHandler.ask``."""
        options.setdefault("reply", self._reply())
        return box.ask(self._agent if to is None else to, body, **self._typed(body, options))

    def _typed(self, body: object, options: dict[str, Any]) -> dict[str, Any]:
        if self._type is not None and not isinstance(body, Msg):
            options.setdefault("type", self._type)
        return options

    def _reply(self) -> Any:
        found = get_type_hints(self._call).get("return")
        if found in (None, type(None)):
            raise InvalidArgument(
                f"{quoted(self._call.__name__)} is not annotated with what it returns: annotate "
                "its reply, or call box.ask(…, reply=…)"
            )
        return found
