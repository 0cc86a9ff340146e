"""
Send to a handler through its own function.

``pay.send(box, invoice)`` has the types of a handler of messages, ``resize.send(box, "a.png")``
those of a task: a function of plain arguments.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine
from copy import copy
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from typing_extensions import TypeForm

from onceward.errors import InvalidArgument
from onceward.message.body import Msg
from onceward.message.handler_options import HandlerOptions
from onceward.message.names import quoted, refuse_options
from onceward.message.options import SendOptions
from onceward.message.times import Point, Span, point
from onceward.message.topics import WILD

if TYPE_CHECKING:
    from onceward.api.contexts import AsyncContext, Context

B_contra = TypeVar("B_contra", contravariant=True)
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
X_contra = TypeVar("X_contra", contravariant=True)


class CallOptions(SendOptions, total=False):
    """The keyword arguments of ``options``: those of a send, and two more."""

    to: str | None
    """Another agent with the same handler; default: the agent that declares it."""
    timeout: Span
    """Time that ``ask`` waits for the reply; that of a ``request`` is late after it."""


class Sends(Protocol[S_co]):
    """A postbox, session, transaction or context that sends, sync or async."""

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> S_co:
        """Send one message."""
        ...


class Requests(Protocol[S_co]):
    """A postbox, session, transaction or run that requests, sync or async."""

    def request(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[object] | None = ...,
        timeout: Span | None = ...,
        **options: Unpack[SendOptions],
    ) -> S_co:
        """Send one request, and return its ticket."""
        ...


class RequestsInHandler(Protocol[S_co]):
    """A context that requests, sync or async: it may keep a request without its handler."""

    def request(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[object] | None = ...,
        timeout: Span | None = ...,
        keep: bool = ...,
        **options: Unpack[SendOptions],
    ) -> S_co:
        """Send one request, and return its ticket."""
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


class BodyCalls(Protocol[B_contra, R_co]):
    """Sends bodies to a handler of messages."""

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

    def at(
        self,
        box: Sends[S],
        when: Point,
        body: B_contra,
        /,
        *,
        to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> S:
        """Send *body*, which leaves at a moment; see ``send``."""
        ...

    def options(self, **options: Unpack[CallOptions]) -> BodyCalls[B_contra, R_co]:
        """Return the same with options for each call."""
        ...

    @overload
    def request(
        self,
        box: RequestsInHandler[S],
        body: B_contra,
        /,
        *,
        to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> S: ...
    @overload
    def request(
        self,
        box: Requests[S],
        body: B_contra,
        /,
        *,
        to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> S: ...
    def request(self, box: Any, body: B_contra, /, **options: Any) -> Any:
        """Send *body* as a request, and return what ``box.request`` returns: its ticket."""
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


class DeclaredHandler(BodyCalls[B_contra, R_co], Protocol[B_contra, P, C_co, R_co]):
    """A function that handles messages of an agent; it is called as it was before."""

    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Call the plain function."""
        ...


class TaskCalls(Protocol[P, R_co]):
    """Sends calls to a task: their arguments are those of its function."""

    @property
    def model(self) -> type[Any]:
        """Return the class of the bodies; its fields are the arguments."""
        ...

    def send(self, box: Sends[S], /, *args: P.args, **kwargs: P.kwargs) -> S:
        """
        Send one call to the agent of the task, and return what ``box.send`` returns.

        Raises:
            InvalidMessage: an argument, which is named, is missing, unknown, or not of its type.
            SendError: see its subclasses; nothing was written.

        """
        ...

    def at(self, box: Sends[S], when: Point, /, *args: P.args, **kwargs: P.kwargs) -> S:
        """Send one call that leaves at a moment; see ``send``."""
        ...

    def options(self, **options: Unpack[CallOptions]) -> TaskCalls[P, R_co]:
        """Return the same with options: ``resize.options(delay=60).send(box, "a.png")``."""
        ...

    @overload
    def request(self, box: RequestsInHandler[S], /, *args: P.args, **kwargs: P.kwargs) -> S: ...
    @overload
    def request(self, box: Requests[S], /, *args: P.args, **kwargs: P.kwargs) -> S: ...
    def request(self, box: Any, /, *args: Any, **kwargs: Any) -> Any:
        """
        Send one call as a request, and return what ``box.request`` returns: its ticket.

        ``ctx.gather`` and ``box.gather`` return the results of several, which run side by side if
        each has an ``ordering_key`` of its own.
        """
        ...

    @overload
    def ask(self, box: Asks, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def ask(
        self, box: AsksLater, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]: ...
    def ask(self, box: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send one call, and return what the function returns, as its annotation says."""
        ...


class DeclaredTask(TaskCalls[P, R_co], Protocol[P, C_co, R_co]):
    """A function of plain arguments that an agent calls; it is called as it was before."""

    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Call the plain function."""
        ...


class ContextTask(TaskCalls[P, R_co], Protocol[X_contra, P, C_co, R_co]):
    """The same for a function that takes the context first."""

    __name__: str
    __qualname__: str

    def __call__(self, ctx: X_contra, /, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Call the plain function."""
        ...


class Declare(Protocol[B_contra]):
    """Declares a function as a handler, and returns it."""

    @overload
    def __call__(
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredHandler[B_contra, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> DeclaredHandler[B_contra, P, R, R]: ...


class _Anything:
    """Stands for a first parameter that may be anything, so also a context: it is an argument."""


class DeclareTask(Protocol):
    """``@agent.task`` declares a function as a task; ``@agent.task(...)`` does so with options."""

    @overload
    def __call__(
        self, call: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> DeclaredTask[..., Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, call: Callable[Concatenate[_Anything, P], R], /
    ) -> DeclaredTask[..., R, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, call: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /
    ) -> ContextTask[AsyncContext, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, call: Callable[Concatenate[Context, P], R], /
    ) -> ContextTask[Context, P, R, R]: ...
    @overload
    def __call__(
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> DeclaredTask[P, R, R]: ...
    @overload
    def __call__(
        self, *, type: str | None = None, version: int = 1, **options: Unpack[HandlerOptions]
    ) -> DeclareTask: ...


def with_send(call: F, way: Way) -> F:
    """Give a function the ways to send to it; other callables stay as they are."""
    if isinstance(call, types.FunctionType):
        vars(call).update(way.verbs())
    return call


class Way:
    """The way to one handler: its agent, and the options of each message."""

    def __init__(self, call: Callable[..., Any], agent: str) -> None:
        self._call, self.agent = call, agent
        self._options: dict[str, Any] = {}

    def verbs(self) -> dict[str, Any]:
        """Return what the function gets, by name."""
        names = ("send", "request", "ask", "at", "options")
        return {name: getattr(self, name) for name in names}

    def message(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, Any]:
        """Return the body of a call, and the options of its message."""
        raise NotImplementedError

    def send(self, box: Any, /, *args: Any, **named: Any) -> Any:
        """Send one message; see ``BodyCalls.send`` and ``TaskCalls.send``."""
        return self._sent(self._verb(box, "send"), args, named)

    def request(self, box: Any, /, *args: Any, **named: Any) -> Any:
        """Send one request; see ``BodyCalls.request`` and ``TaskCalls.request``."""
        return self._sent(self._verb(box, "request"), args, named)

    def _sent(self, verb: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        body, options = self.message(args, named)
        return verb(self._recipient(options), body, **options)

    def at(self, box: Any, when: Point, /, *args: Any, **named: Any) -> Any:
        """Send one message that leaves at a moment."""
        point("at", when)
        return self.options(at=when).send(box, *args, **named)

    def ask(self, box: Any, /, *args: Any, **named: Any) -> Any:
        """Send one message and return the reply; see ``TaskCalls.ask``."""
        ask = self._verb(box, "ask")
        body, options = self.message(args, named)
        options.setdefault("reply", self._reply())
        return ask(self._recipient(options), body, **options)

    def options(self, **options: Any) -> Self:
        """Return the same way with options."""
        unknown = options.keys() - CallOptions.__annotations__.keys()
        if unknown:
            refuse_options("a send", unknown, CallOptions.__annotations__)
        way = copy(self)
        way._options = {**self._options, **options}
        return way

    def _recipient(self, options: dict[str, Any]) -> str:
        to: str | None = options.pop("to", None)
        return self.agent if to is None else to

    def _verb(self, box: Any, verb: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(box, verb, None)
        return found or self._refuse(box, verb)

    def _refuse(self, box: Any, verb: str) -> NoReturn:
        takes = "a postbox, session or context" + ", or a transaction" * (verb != "ask")
        raise InvalidArgument(
            f"{self._call.__name__}.{verb}: the first argument is {takes}, not {quoted(box)}"
        )

    def _reply(self) -> Any:
        found = get_type_hints(self._call).get("return")
        if found in (None, type(None)):
            raise InvalidArgument(
                f"{quoted(self._call.__name__)} is not annotated with what it returns: annotate "
                "its reply, or call box.ask(…, reply=…)"
            )
        return found


class BodyWay(Way):
    """The way to a handler of messages, whose pattern may name their type."""

    def __init__(self, call: Callable[..., Any], agent: str, what: type | str) -> None:
        super().__init__(call, agent)
        self._type = what if isinstance(what, str) and WILD.isdisjoint(what) else None

    def message(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, Any]:
        """Return the given body; the names are options."""
        options = {**self._options, **named}
        if len(args) != 1:
            raise InvalidArgument(f"{self._call.__name__}: send one body, not {len(args)}")
        if self._type is not None and not isinstance(args[0], Msg):
            options.setdefault("type", self._type)
        return args[0], options
