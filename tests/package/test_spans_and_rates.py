"""Every public parameter that is a span or a rate takes what all others take."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from tests.package.test_public_surface import MODULES, public_classes

from onceward import Agent, RetryPolicy, Run, Settings
from onceward.errors import InvalidArgument
from onceward.features.channels.directory import ChannelConfig
from onceward.message.handler_options import HandlerOptions
from onceward.message.options import ScheduleOptions, SendOptions
from onceward.message.queue_modes import QueueOptions
from onceward.message.settings import SettingsOptions, Spelled
from onceward.message.times import GivenRate, Moment, Span
from onceward.ops.cli.app import COMMANDS
from onceward.ops.mcp.options import McpOptions
from onceward.ops.observe.file_metrics import FileMetrics
from onceward.testing.clock import ManualClock
from onceward.transports.function import FunctionTransport
from onceward.transports.network.http_endpoint import HttpLimits

SPAN, RATE = set(get_args(Span)), set(get_args(GivenRate))
MOMENT = set(get_args(Moment))
NUMBERS = {"burst", "cap", "jitter", "queue_cap"}
"""Numbers with fractions that are not spans; the cap of a policy is one, and is tested below."""
OPTIONS = (HandlerOptions, QueueOptions, SendOptions, ScheduleOptions, SettingsOptions)
MADE = ("Runs", "Retried", "Processed", "DeadLettered", "FarEnd", "HomePing")
INTERNAL = {f"{each}.__init__" for each in MADE}
"""Calls of public classes that only the package makes."""


def _serve(run: Run) -> None: ...
def _handle(body: Any) -> None: ...
def _send(frames: Any) -> bool:
    return bool(frames)


def hints_of(call: Any) -> dict[str, Any]:
    """Return the types of a call's parameters."""
    plain = inspect.unwrap(getattr(call, "__func__", call))
    return annotated(plain, getattr(plain, "__globals__", {}))


def annotated(owner: Any, scope: dict[str, Any]) -> dict[str, Any]:
    """Return the types that annotations name; those that only type checkers import are floats."""
    found: dict[str, Any] = {}
    for name, written in getattr(owner, "__annotations__", {}).items():
        text = getattr(written, "__forward_arg__", written)
        if name != "return":
            found[name] = evaluated(text, scope) if isinstance(text, str) else text
    return found


def evaluated(text: str, scope: dict[str, Any]) -> Any:
    """Return what an annotation says, ``float`` where it cannot be read and says so."""
    try:
        return eval(text, scope)  # noqa: S307 - annotations of ours
    except (NameError, SyntaxError):  # ``*Ts`` is not an expression
        return float if "float" in text else object


def parts(hint: Any) -> set[Any]:
    """Return the members of a union, without None."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    members = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return {part for part in members if isinstance(part, type)} - {type(None)}


def option_hints(options: Any) -> dict[str, Any]:
    """Return the types of the keywords that a typed dictionary names."""
    return annotated(options, vars(import_module(options.__module__)))


def parameters() -> Iterator[tuple[str, str, Any]]:
    """Yield the call, the name and the type of every parameter of the public API."""
    classes = {each for each in public_classes() if not is_typeddict(each)}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                classes.add(value)
            elif callable(value):
                yield from ((name, *pair) for pair in hints_of(value).items())
    for kind in classes:
        for name in dir(kind):
            call = getattr(kind, name, None)
            if (name == "__init__" or not name.startswith("_")) and callable(call):
                yield from (
                    (f"{kind.__qualname__}.{name}", *pair) for pair in hints_of(call).items()
                )
    for options in OPTIONS:
        yield from ((options.__name__, *pair) for pair in option_hints(options).items())


def test_spans_and_rates_have_one_type_each() -> None:
    """No parameter of the API is a bare number of seconds, or text that is parsed elsewhere."""
    spelled = [
        (call, name, parts(hint))
        for call, name, hint in parameters()
        if parts(hint) & {float, timedelta} and call not in INTERNAL
    ]
    own = [
        f"{call}({name}=)"
        for call, name, kinds in spelled
        if kinds not in ((RATE if name == "rate" else SPAN), MOMENT) and name not in NUMBERS
    ]

    assert [] == sorted(own)
    assert len(spelled) > 80


def test_options_of_the_command_line_have_one_type_each() -> None:
    """A span or rate of a command is an option type that the parser converts."""
    bare = []
    for command, place in COMMANDS.items():
        module, _, name = place.partition(":")
        try:
            call = getattr(import_module(module), name)
        except ModuleNotFoundError:  # an extra that is not installed here
            continue
        for parameter, hint in get_type_hints(inspect.unwrap(call)).items():
            if float in parts(hint) and parameter not in {*NUMBERS, "return"}:
                bare.append(f"{command} {parameter}")

    assert [] == bare


def test_settings_are_typed_as_they_are_read() -> None:
    """A field that reads spans is a keyword of the type of spans."""
    typed = get_type_hints(SettingsOptions)
    spans = {name for name, field in Settings.model_fields.items() if Spelled in field.metadata}

    assert spans == {name for name, hint in typed.items() if timedelta in parts(hint)}
    assert len(spans) > 8


@pytest.mark.parametrize("given", [1.5, timedelta(seconds=1.5), "1500ms", "1.5s"])
def test_spans_of_declarations_are_read_alike(given: Any) -> None:
    """A number, a timedelta and text say the same, wherever they are given."""
    agent = Agent("a")
    agent.runs("s", timeout=given, debounce=given)(_serve)
    agent.on("b", timeout=given, unique_for=given, batch=None)(_handle)
    clock = ManualClock(0)
    clock.advance(given)
    clock.step(given)
    [served], [handler] = agent.sessions, agent.handlers
    policy = RetryPolicy.three_retries(ack_timeout=given)

    assert (1.5, 1500) == (served.timeout, served.options["debounce_for"])
    assert (1.5, 1500) == (handler.timeout, handler.rules.unique_for)
    assert (3000, 1.5) == (clock.now(), clock.monotonic())
    assert 1.5 + 1 == policy.wait(attempt(1))
    assert 1.5 == ChannelConfig(ack_timeout=given).ack_timeout
    assert 1.5 == Settings(queue_debounce=given).queue_debounce


def attempt(number: int) -> Any:
    """Return the state of a retried call at its attempt of that number."""
    from onceward.message.retry import _state  # noqa: PLC0415 - made for this test only

    return _state(number)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Agent("a").runs(timeout="soon"),
        lambda: Agent("a").runs(timeout=0),
        lambda: Agent("a").runs(debounce="soon"),
        lambda: Agent("a").runs(debounce=timedelta(seconds=-1)),
        lambda: Agent("a").runs(attempts=0),
        lambda: Agent("a").on("b", timeout="soon"),
        lambda: Agent("a").on("b", unique_for=0),
        lambda: Agent("a").on("b", unique_for="0s"),
        lambda: Agent("a").on("b", rate="often"),
        lambda: Agent("a").on("b", rate=0),
        lambda: Agent("a").on("b", rate=float("nan")),
        lambda: Agent("a").every("soon"),
        lambda: RetryPolicy.three_retries(ack_timeout="soon"),
        lambda: replace(RetryPolicy.ten_retries(), cap="soon"),
        lambda: replace(RetryPolicy.ten_retries(), open_for="soon"),
        lambda: FunctionTransport(_send, timeout="soon"),
        lambda: HttpLimits(body_timeout="soon"),
        lambda: HttpLimits(header_timeout="soon"),
        lambda: FileMetrics([], within="soon"),
        lambda: McpOptions(lease="soon"),
        lambda: McpOptions(limit="often"),
        lambda: ManualClock().advance("soon"),
        lambda: ManualClock().advance(-1),
        lambda: ManualClock().step("soon"),
    ],
)
def test_what_is_no_span_or_rate_is_refused_where_it_is_given(declare: Any) -> None:
    """At once, not when the first message comes."""
    with pytest.raises(InvalidArgument):
        declare()


@pytest.mark.parametrize(
    ("given", "burst", "per_second"),
    [(2, 1, 2.0), (0.5, 1, 0.5), ("2", 1, 2.0), ("2/s", 2, 2.0), ("30/15m", 30, 1 / 30)],
)
def test_rates_of_handlers_are_read_alike(given: Any, burst: int, per_second: float) -> None:
    """A number is so often a second; all calls of a text may come at once."""
    agent = Agent("a")
    agent.on("b", rate=given)(_handle)
    [handler] = agent.handlers

    assert handler.rules.rate is not None
    assert burst == handler.rules.rate.burst
    assert pytest.approx(per_second) == handler.rules.rate.per_second
