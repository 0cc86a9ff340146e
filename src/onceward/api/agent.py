"""Declare agents: a name and its handlers; no file is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
)

from typing_extensions import TypeVar as DefaultTypeVar

from onceward.api.declared import BodyWay, Declare, DeclareTask, with_send
from onceward.core.handle.signatures import Handler, Handlers
from onceward.errors import InvalidArgument
from onceward.message.body import message_type
from onceward.message.handler_options import (
    HandlerOptions,
    HandlerRules,
    handler_rules,
    positive_span,
    whole_number,
)
from onceward.message.names import (
    AcceptedType,
    AgentProfile,
    agent_name,
    agent_profile,
    listed,
    plain_text,
    quoted,
    refuse_options,
)
from onceward.message.queue_modes import QueueOptions, check_sessions, checked
from onceward.message.times import Span
from onceward.message.topics import check_pattern
from onceward.message.validators import body_schema
from onceward.message.vocabulary import Missed, Overlap

if TYPE_CHECKING:
    from onceward.core.handle.signatures import Around, HandlerSignature
    from onceward.features.runs.scheduler import SessionHandler

P = ParamSpec("P")
R = TypeVar("R")
B = DefaultTypeVar("B", default=Any)
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Callable[[Any], Iterator[None]])
ACCEPTS_MAX: Final = 100
"""Maximum number of handlers in an agent's registry entry."""


class Agent(Handlers):
    """
    A name and its handlers.

    Declaring an agent opens no file and starts no thread, and a decorated function stays the plain
    function that it was. ``box.agents.list`` shows to its home what it handles, *description* and
    *capabilities*, as of the last time its file was opened with it; None keeps the stored value.
    While its file is open, it is a member of the pools that it *serves*, see ``box.pools``.
    """

    def __init__(
        self,
        name: str,
        *,
        unhandled: Literal["dead", "wait"] = "dead",
        description: str | None = None,
        capabilities: Iterable[str] | None = None,
        serves: str | Iterable[str] = (),
        **unknown: Never,
    ) -> None:
        if unknown:
            known = ("unhandled", "description", "capabilities", "serves")
            refuse_options("an agent", unknown, known)
        self.name = agent_name(name)
        self._profile = agent_profile(description, capabilities)
        if unhandled not in ("dead", "wait"):
            msg = f"unhandled={quoted(unhandled)} is not one of dead, wait"
            raise InvalidArgument(msg)
        names = (serves,) if isinstance(serves, str) else listed("serves", serves)
        self.serves = tuple(map(agent_name, names))
        self.unhandled = unhandled
        """Fate of messages without a handler: dead letters, or left for ``receive``."""
        self.handlers: list[Handler] = []
        self.sessions: list[SessionHandler] = []
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Functions that tests call in place of those that ``Depends`` names."""
        self._openings: list[Callable[[Any], object]] = []
        self._schedules: set[str] = set()
        self._awaited: set[str] = set()
        """Types that the handlers wait for."""
        self._around: list[Around] = []

    def __repr__(self) -> str:
        """Name the agent and what it handles."""
        handled = [handler.pattern for handler in self.handlers]
        handled += [f"sessions {handler.pattern}" for handler in self.sessions]
        return f"<Agent {self.name}: {', '.join(handled)}>"

    @property
    def profile(self) -> AgentProfile:
        """The text of its registry entry, and the types that it has handlers for."""
        accepts = [AcceptedType(each.pattern, body_schema(each.body)) for each in self.handlers]
        accepts += [AcceptedType(each) for each in sorted(self._awaited)] if accepts else []
        if len(accepts) > ACCEPTS_MAX or (accepts and (self.sessions or self.unhandled == "wait")):
            accepts = [*accepts[: ACCEPTS_MAX - 1], AcceptedType("#")]
        return replace(self._profile, accepts=tuple(accepts) or None)

    def on(self, what: type[B] | str, **options: Unpack[HandlerOptions]) -> Declare[B]:
        """
        Handle messages of a model's type, or whose type or topic matches a pattern.

        The payload type is the annotation of the first parameter; a payload that does not validate
        is rejected before the handler runs. A second parameter receives the Context (AsyncContext
        for ``async def``); other parameters keep their defaults.

        The returned value is the reply to a message that asks for one (``ask``, ``request``). For
        others it is kept for ``result``, unless it is None; see *keep_result*.

        The function stays as it was, and can send to its agent: ``pay.send(box, invoice)``,
        ``pay.ask(box, invoice)`` and ``pay.at(box, when, invoice)`` have the types of its
        signature.

        Raises:
            InvalidArgument: the pattern or an option breaks its rules, a handler of the
                same pattern exists, or the function cannot be called like this.

        """
        from onceward.core.handle.signatures import message_signature  # noqa: PLC0415 - with handlers only

        _bracketed("on", what)
        pattern = check_pattern(what if isinstance(what, str) else message_type(what))
        rules = handler_rules(options)

        def declare(call: Callable[P, R]) -> Callable[P, R]:
            model = None if isinstance(what, str) else what
            found = (
                message_signature(call, model)
                if rules.batch is None
                else _batch_signature(call, model, pattern)
            )
            self._handle(pattern, call, found, rules)
            return with_send(call, BodyWay(call, self.name, what))

        return cast("Declare[B]", declare)

    @property
    def task(self) -> DeclareTask:
        """
        Call a function of plain arguments: ``@agent.task``, or ``@agent.task(attempts=3)``.

        ``resize.send(box, "a.png", width=200)`` sends a call, ``.ask`` also returns what the
        function returns, ``.at(box, when, …)`` sends a call that leaves at a moment, and
        ``.options(delay=60, key="a").send(box, …)`` takes the options of ``send``. *box* is a
        postbox, a session, a transaction or a handler's context. Arguments are checked when they
        are sent, by the annotations of the function, which stays as it was.

        The message has the function's name as its type, or *type*, and ``resize.model`` as the
        class of its body, which may have a *version*. A parameter annotated ``Context``
        (``AsyncContext`` for ``async def``) gets the context, and one that ``Depends`` on a
        function its value. Type checkers know the context as the first parameter. Other options are
        those of ``on``.

        Raises:
            InvalidArgument: a parameter cannot be a field of a message; or see ``on``.

        """
        return cast("DeclareTask", self._task)

    def _task(
        self,
        call: Callable[..., Any] | None = None,
        /,
        *,
        type: str | None = None,
        version: int = 1,
        **options: Any,
    ) -> Any:
        """Declare a task, or return a function that does."""
        from onceward.api.tasks import TaskWay, task_of  # noqa: PLC0415 - with tasks only

        if options.get("batch") is not None:
            raise InvalidArgument("a task is one call: batches have handlers, @agent.on")
        rules = handler_rules(cast("HandlerOptions", options))
        if call is None:
            return partial(self._task, type=type, version=version, **options)
        task = task_of(call, type, version)
        self._handle(check_pattern(task.type), task.handler(), task.signature, rules)
        return with_send(call, TaskWay(task, self.name))

    def _handle(
        self, pattern: str, call: Callable[..., Any], found: HandlerSignature, rules: HandlerRules
    ) -> None:
        """Add a handler."""
        from onceward.core.handle.signatures import Dependencies  # noqa: PLC0415 - with handlers only

        self._check_new(pattern, call)
        if rules.is_grouped:
            self._check_groups(rules, found.body)
        _put(
            self.handlers,
            Handler(
                pattern=pattern,
                call=call,
                body=found.body,
                takes_context=found.takes_context,
                is_async=found.is_async,
                rules=rules,
                dependencies=Dependencies(found.needs, self.overrides) if found.needs else None,
                around=(self._around,),
            ),
        )

    def _check_groups(self, rules: HandlerRules, body: Any) -> None:
        """Refuse a key that no body has, and groups whose messages readers may take."""
        if rules.key is not None:
            rules.key.check(body)
        if self.unhandled == "wait":
            msg = (
                f"agent {self.name} leaves unhandled messages waiting: its handlers have no key"
                " and no debounce"
            )
            raise InvalidArgument(msg)

    def at_open(self, work: Callable[[Any], R]) -> Callable[[Any], R]:
        """
        Call *work* with each postbox that is opened for this agent, before its engines start.

        An ``async def`` takes an AsyncPostbox, whichever face was opened, and is awaited.
        """
        _callable("at_open", work)
        self._open_with(work)
        return work

    def waits(self, *what: type | str) -> None:
        """
        Keep messages of these types for ``ctx.wait``: they reach no handler.

        Raises:
            InvalidArgument: a handler takes them.

        """
        for name in [each if isinstance(each, str) else message_type(each) for each in what]:
            if any(handler.pattern == name for handler in self.handlers):
                msg = f"agent {self.name} has a handler for {name}, so no handler can wait for it"
                raise InvalidArgument(msg)
            self._awaited.add(plain_text("type", name))

    def around(self, work: A) -> A:
        """
        Run a generator function around each call of this agent's handlers.

        It is called with the handler's context (``Context``, ``BatchContext`` or ``Run``), on the
        worker's thread, also for ``async def``, and yields once: the handler, and wrappers declared
        later, run there. The yield returns the handler's answer, or raises its exception. An
        exception of the generator counts as the handler's, so ``Reject``, ``Retry`` and ``Drop``
        work as in a handler. A value that the generator returns is the answer; without a yield the
        handler is not called. Wrappers of an included agent run inside these.

        Raises:
            InvalidArgument: *work* is not a generator function.

        """
        from onceward.core.handle.signatures import check_around  # noqa: PLC0415 - rarely needed

        check_around(work)
        self._around.append(work)
        return work

    def every(
        self,
        span: Span,
        *,
        name: str | None = None,
        missed: Missed = "one",
        overlap: Overlap = "queue",
        session: str | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """
        Handle a ``Tick`` that this agent sends itself after each *span*, as ``schedules.add`` does.

        A task is called with the defaults of its arguments, and a function without arguments is
        made a task, so one function serves the schedule and calls by hand.

        The schedule is called *name*, by default as the function, and is stored when the agent's
        file is opened. Its ticks wait for no other messages, unless it has a *session*. A schedule
        that no process with the file open declares is paused by one that handles the agent's
        messages; declared again, it continues with its next date.

        Raises:
            InvalidArgument: see ``on`` and ``schedules.add``.

        """
        _bracketed("every", span, (int, float, str, timedelta))
        policies: Any = {"missed": missed, "overlap": overlap, "session": session}
        return self._at_dates({"every": span}, name, policies, options)

    def cron(
        self,
        expression: str,
        *,
        timezone: str | None = None,
        name: str | None = None,
        missed: Missed = "one",
        overlap: Overlap = "queue",
        session: str | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Handle a ``Tick`` at the dates of a cron expression, in *timezone*; see ``every``."""
        _bracketed("cron", expression)
        rule: Any = {"cron": expression, "timezone": timezone}
        policies: Any = {"missed": missed, "overlap": overlap, "session": session}
        return self._at_dates(rule, name, policies, options)

    def _at_dates(
        self,
        rule: Mapping[str, Any],
        name: str | None,
        policies: Mapping[str, Any],
        options: HandlerOptions,
    ) -> Callable[[F], F]:
        """Handle the ticks of a schedule that is added whenever the agent's file is opened."""
        from onceward.message.dates import (  # noqa: PLC0415 - rarely needed
            check_policies,
            make_rule,
            schedule_name,
        )

        check_policies(policies["missed"], policies["overlap"])
        if policies["session"] is not None:
            plain_text("session", policies["session"])
        make_rule(rule.get("every"), rule.get("cron"), rule.get("timezone"))

        def declare(call: F) -> F:
            own = str(getattr(call, "__name__", type(call).__name__))
            called = schedule_name(own if name is None else name)
            message = self._scheduled(call, f"schedule.{called}", options)
            self._open_with(partial(_add_schedule, called, **message, **policies, **rule))
            self._schedules.add(called)
            return call

        return declare

    def _scheduled(
        self, call: Callable[..., Any], kind: str, options: HandlerOptions
    ) -> dict[str, Any]:
        """
        Return the message of a schedule that calls a task, or a handler of the type *kind*.

        A function that a schedule of another object of this agent has made a task is handled by
        this one, too.
        """
        from onceward.api.tasks import takes_nothing, way_of  # noqa: PLC0415 - rarely needed

        way = way_of(call)
        if way is not None and (way.agent, way.task.type) == (self.name, kind):
            way = way if any(each.pattern == kind for each in self.handlers) else None
        if way is None and takes_nothing(call):
            way = way_of(self._task(call, type=kind, **options))
        elif way is not None and options:
            given = ", ".join(options)
            raise InvalidArgument(f"give {given} to the task: @agent.task({given}=…)")
        if way is None:
            self.on(kind, **options)(call)
            return {"type": kind}
        to = None if way.agent == self.name else way.agent
        return {"to": to, "body": way.task.body((), {})}

    def include(self, other: Agent) -> Self:
        """Add the handlers of another agent object, so that modules can be composed."""
        if not isinstance(other, Agent):
            msg = f"include={quoted(other)} must be an Agent"
            raise InvalidArgument(msg)
        self._leave_to(other)
        for handler in other.handlers:
            self._check_new(handler.pattern, handler.call)
            included = _overridable(handler, self.overrides)
            _put(self.handlers, replace(included, around=(self._around, *handler.around)))
        for served in other.sessions:
            self._serve(replace(served, around=(self._around, *served.around)))
        for work in other._openings:
            self._open_with(work)
        self._schedules |= other._schedules
        self._awaited |= other._awaited
        return self

    def runs(
        self,
        pattern: str = "*",
        *,
        types: Sequence[type] = (),
        allow_override_from: Sequence[str] = (),
        attempts: int | None = None,
        timeout: Span | None = None,
        **options: Unpack[QueueOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """
        Serve sessions by runs: each call of the function gets a batch of messages.

        Runs take every message of their sessions, even of types that have a handler; so an agent
        with handlers must name its sessions. A session has one run at a time. The function takes
        the run (``AsyncRun`` where it is ``async def``). Its return value is the run's result and
        the reply to its requests that it has not answered; the result of a dispatched task is sent
        anyway. Bodies are read as the class of *types* that has their
        type. Agents in *allow_override_from* may ask for another mode for single messages, by the
        header ``queuemode``.

        Raises:
            InvalidArgument: the pattern or an option breaks its rules, a handler of the
                same pattern exists, or the function cannot be called with the run.

        """
        from onceward.features.runs.run import check_session_signature  # noqa: PLC0415 - rarely needed
        from onceward.features.runs.scheduler import SessionHandler  # noqa: PLC0415 - as above

        fields = checked(options)
        attempts = whole_number("attempts", attempts, "a run is called at least once")
        limit = None if timeout is None else positive_span("timeout", timeout)
        _bracketed("runs", pattern)
        check_sessions(pattern)

        def declare(call: Callable[P, R]) -> Callable[P, R]:
            is_async = check_session_signature(call)
            self._serve(
                SessionHandler(
                    pattern=pattern,
                    call=call,
                    options=fields,
                    types={message_type(model): model for model in listed("types", types)},
                    allow_override_from=tuple(
                        map(agent_name, listed("allow_override_from", allow_override_from))
                    ),
                    is_async=is_async,
                    attempts=attempts,
                    timeout=limit,
                    around=(self._around,),
                )
            )
            return call

        return declare

    def _leave_to(self, other: Agent) -> None:
        """Remove what was included from an agent before: a cell runs again."""
        its = {(each.pattern, id(each.call)) for each in other.handlers}
        its |= {(each.pattern, id(each.call)) for each in other.sessions}
        self.handlers[:] = [x for x in self.handlers if (x.pattern, id(x.call)) not in its]
        self.sessions[:] = [x for x in self.sessions if (x.pattern, id(x.call)) not in its]

    def _open_with(self, work: Callable[[Any], object]) -> None:
        """Run *work* when the file is opened, in place of its earlier self."""
        from onceward.api.same_place import declared, same_place  # noqa: PLC0415 - with handlers only

        declared(work)
        schedule = _schedule_of(work)
        self._openings = [
            each
            for each in self._openings
            if each is not work
            and not (same_place(each, work) if schedule is None else _schedule_of(each) == schedule)
        ]
        self._openings.append(work)

    def _serve(self, handler: SessionHandler) -> None:
        from onceward.api.same_place import declared, same_place  # noqa: PLC0415 - with handlers only

        known = next((each for each in self.sessions if each.pattern == handler.pattern), None)
        if known is not None and not same_place(known.call, handler.call):
            raise InvalidArgument(f"agent {self.name} already serves sessions {handler.pattern!r}")
        self._check_reached(self.handlers[0].pattern if self.handlers else None, [handler])
        declared(handler.call)
        _put(self.sessions, handler)

    def _check_new(self, pattern: str, call: object) -> None:
        """
        Raise InvalidArgument for a pattern that is handled already or that gets no message.

        A function may take the place of its earlier self: a notebook's cell is run again.
        """
        from onceward.api.same_place import declared, same_place  # noqa: PLC0415 - with handlers only

        known = next((each for each in self.handlers if each.pattern == pattern), None)
        if known is not None and not same_place(known.call, call):
            raise InvalidArgument(f"agent {self.name} already handles {pattern!r}")
        if pattern in self._awaited:
            raise InvalidArgument(f"agent {self.name} waits for {pattern}, so no handler gets it")
        self._check_reached(pattern, self.sessions)
        declared(call)

    def _check_reached(self, pattern: str | None, served: Iterable[SessionHandler]) -> None:
        """Raise InvalidArgument if runs of every session would take a handler's messages."""
        if pattern is None or all(each.pattern.strip("*") for each in served):
            return
        raise InvalidArgument(
            f"agent {self.name} serves every session by runs, which take the messages of its"
            f" handler for {pattern!r}: name the sessions that have runs, as in"
            " @agent.runs('chat-*'), or declare the handler on another agent"
        )


class _Patterned(Protocol):
    @property
    def pattern(self) -> str:
        """Return what it handles."""


H = TypeVar("H", bound=_Patterned)


def _put(known: list[H], new: H) -> None:
    """Add a handler, or put it in the place of the one with its pattern."""
    for at, each in enumerate(known):
        if each.pattern == new.pattern:
            known[at] = new
            return
    known.append(new)


def _schedule_of(work: Callable[[Any], object]) -> str | None:
    """Return the schedule that a function declares when a file is opened; None for another."""
    return str(work.args[0]) if isinstance(work, partial) and work.func is _add_schedule else None


def _add_schedule(name: str, box: Any, **rule: Any) -> None:
    box.schedules.add(name, **rule)


def _batch_signature(
    call: Callable[..., Any], model: type | None, pattern: str
) -> HandlerSignature:
    from onceward.features.batches.signature import batch_signature  # noqa: PLC0415 - rarely needed

    if "*" in pattern or "#" in pattern:
        raise InvalidArgument(f"a batch handler needs an exact type or topic, not {pattern!r}")
    return batch_signature(call, model)


def _overridable(
    handler: Handler, overrides: dict[Callable[..., Any], Callable[..., Any]]
) -> Handler:
    """Return a handler whose dependencies are looked up in *overrides*."""
    known = handler.dependencies
    if known is None:
        return handler
    return replace(handler, dependencies=known._replace(overrides=overrides))


def _callable(decorator: str, given: object) -> None:
    if not callable(given):
        msg = f"{decorator}={quoted(given)} must be a function"
        raise InvalidArgument(msg)


def _bracketed(decorator: str, given: object, kinds: tuple[type, ...] = (str, type)) -> None:
    """
    Raise InvalidArgument for ``@agent.on`` without brackets.

    It would replace the function and handle nothing.
    """
    if not isinstance(given, kinds):
        msg = f"name what it handles in brackets: @agent.{decorator}(...), not {quoted(given)}"
        raise InvalidArgument(msg)
