"""
Restores of an agent between a sender and a recipient, small enough to be searched to the end.

The sender has jobs; the agent handles each and sends two results; the recipient keeps each result
once, by its id. The disk of the agent may be lost at any moment, and the file be restored from a
backup of any earlier moment, also twice, and before its greeting is answered. A machine may take
over while the other one goes on. A recipient that is put back is in ``model.py``.

Every transition stands for one commit of the real code, or for one exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

PENDING, SENT, ACKED = "pending", "sent", "acked"
RESULTS: Final = 2
"""Results that a handler sends for a job, of one type: only their order tells them apart."""

Result = tuple[int, int]
"""A job and the place of one of its results."""
Id = tuple[int, ...]


class Agent(NamedTuple):
    """The agent's file."""

    generation: int = 0
    queue: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    out: frozenset[tuple[Id, Result]] = frozenset()
    """Results that wait, by id."""
    greets: frozenset[str] = frozenset()
    """The peers that do not know yet that the file was restored."""
    stopped: bool = False


class Recipient(NamedTuple):
    """The recipient's file."""

    ids: frozenset[Id] = frozenset()
    effects: tuple[Result, ...] = ()
    known: int = 0
    """The generation of the agent's file that it knows."""


class State(NamedTuple):
    """All files, the backups, and the file of a machine that was given up and goes on."""

    jobs: tuple[str, ...] = ()
    known: int = 0
    """The generation of the agent's file that the sender knows."""
    agent: Agent = Agent()
    other: Agent | None = None
    recipient: Recipient = Recipient()
    saved: Agent | None = None
    losses: int = 0


class Rules(NamedTuple):
    """How large the model is, and which of its rules is left out on purpose."""

    jobs: int = 1
    losses: int = 2
    broken: str = ""


class Search(NamedTuple):
    """What an exhaustive search found."""

    states: int
    wrong: str
    path: tuple[str, ...]
    taken: Counter[str]


Step = tuple[str, State]


def explore(rules: Rules) -> Search:
    """Visit every state by the fewest steps; stop at one that is wrong or cannot finish."""
    came: dict[State, tuple[State, str] | None] = {State(): None}
    before: dict[State, list[State]] = {}
    taken = Counter[str]()
    waiting = [State()]
    for state in waiting:  # grows while it is walked through
        for name, after in steps(state, rules):
            taken[name.partition(" ")[0]] += 1
            before.setdefault(after, []).append(state)
            if after in came:
                continue
            came[after] = state, name
            waiting.append(after)
            if problem := wrong(after):
                return Search(len(came), problem, _path(came, after), taken)
    for stuck in _stuck(waiting, before, rules):
        return Search(len(came), "no way to finish", _path(came, stuck), taken)
    return Search(len(came), "", (), taken)


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names: list[str] = []
    while (source := came[state]) is not None:
        state, name = source
        names.append(name)
    return tuple(reversed(names))


def _stuck(every: list[State], before: dict[State, list[State]], rules: Rules) -> list[State]:
    """Return the states from which nothing can finish."""
    waiting = [state for state in every if finished(state, rules)]
    reached = set(waiting)
    while waiting:
        for state in before.get(waiting.pop(), ()):
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    return [state for state in every if state not in reached]


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """Yield every transition from a state with its name."""
    if len(state.jobs) < rules.jobs:
        yield "send", state._replace(jobs=(*state.jobs, PENDING))
    yield from _of_agent(state, state.agent, rules, lambda s, a: s._replace(agent=a))
    if state.other is not None:
        yield from _of_agent(state, state.other, rules, lambda s, a: s._replace(other=a))
    yield from _greetings(state, rules)
    if state.saved != state.agent:
        yield "backup", state._replace(saved=state.agent)
    if state.losses < rules.losses:
        yield from _losses(state)


def _of_agent(
    state: State, agent: Agent, rules: Rules, put: Callable[[State, Agent], State]
) -> Iterator[Step]:
    """Steps of one file of the agent: the present one, or that of the machine that was given up."""
    if agent.stopped:
        return
    whose = "" if agent is state.agent else "other "
    for i, kind in enumerate(state.jobs):
        if kind == PENDING:
            yield f"push {whose}{i}", _pushed(state, agent, i, rules, put)
        told = kind != ACKED and i in agent.done
        if told and (agent.generation >= state.known or rules.broken == "generation"):
            yield f"tell {whose}{i}", state._replace(jobs=_with(state.jobs, i, ACKED))
    for i in agent.queue:
        yield f"handle {whose}{i}", put(state, _handled(state, agent, i, rules))
    for each in agent.out:
        yield from _delivered(state, agent, each, rules, put)


def _pushed(
    state: State, agent: Agent, i: int, rules: Rules, put: Callable[[State, Agent], State]
) -> State:
    """Store a job; a file that the sender knows as superseded learns it and stops."""
    if agent.generation < state.known and rules.broken != "generation":
        return put(state, agent._replace(stopped=True))
    state = state._replace(jobs=_with(state.jobs, i, SENT))
    if "sender" in agent.greets:  # its stream does not continue, with or without a greeting
        state, agent = _heard(state, agent), agent._replace(greets=agent.greets - {"sender"})
    known = i in agent.done | agent.queue
    return put(state, agent if known else agent._replace(queue=agent.queue | {i}))


def _handled(state: State, agent: Agent, i: int, rules: Rules) -> Agent:
    return agent._replace(
        queue=agent.queue - {i}, done=agent.done | {i}, out=agent.out | _results(state, i, rules)
    )


def _results(state: State, i: int, rules: Rules) -> frozenset[tuple[Id, Result]]:
    """Return the results of a job with their ids: derived from the job and the place."""
    made: list[tuple[Id, Result]] = []
    for place in range(RESULTS):
        message_id: Id = (i, 0 if rules.broken == "ordinal" else place)
        if rules.broken == "fresh":
            message_id = (*message_id, state.losses)
        made.append((message_id, (i, place)))
    return frozenset(made)


def _delivered(
    state: State,
    agent: Agent,
    each: tuple[Id, Result],
    rules: Rules,
    put: Callable[[State, Agent], State],
) -> Iterator[Step]:
    """Push a result; its answer may be lost."""
    there, whose = state.recipient, "" if agent is state.agent else "other "
    if agent.generation < there.known and rules.broken != "generation":
        yield f"refused {whose}", put(state, agent._replace(stopped=True))
        return
    message_id, result = each
    if message_id not in there.ids:
        effects = tuple(sorted((*there.effects, result)))
        there = there._replace(ids=there.ids | {message_id}, effects=effects)
    taken = state._replace(recipient=there)
    yield f"lost {whose}{result}", taken
    yield f"deliver {whose}{result}", put(taken, agent._replace(out=agent.out - {each}))


def _greetings(state: State, rules: Rules) -> Iterator[Step]:
    """Greet a peer: it knows the file, and sends again what that has lost."""
    agent, there = state.agent, state.recipient
    if rules.broken != "greeting" and not agent.stopped:
        if "sender" in agent.greets:
            greeted = agent._replace(greets=agent.greets - {"sender"})
            yield "greet sender", _heard(state, agent)._replace(agent=greeted)
        if "recipient" in agent.greets:
            yield (
                "greet recipient",
                state._replace(
                    agent=agent._replace(greets=agent.greets - {"recipient"}),
                    recipient=there._replace(known=agent.generation),
                ),
            )


def _heard(state: State, agent: Agent) -> State:
    """Send the jobs again that a restored file lacks; the sender knows its generation."""
    has = agent.done | agent.queue
    jobs = tuple(PENDING if i not in has else kind for i, kind in enumerate(state.jobs))
    return state._replace(jobs=jobs, known=max(state.known, agent.generation))


def _losses(state: State) -> Iterator[Step]:
    """Lose the agent's disk, or give a machine up that goes on; the backup takes its place."""
    if state.saved is None or state.other is not None:
        return
    after = state._replace(losses=state.losses + 1)
    newest = max(state.agent.generation, state.saved.generation)
    peers = frozenset({"sender", "recipient"})
    back = state.saved._replace(greets=peers, generation=newest)
    yield "restore", after._replace(agent=back)
    taken = back._replace(generation=newest + 1)
    yield "take_over", after._replace(agent=taken, other=state.agent)


def _with(jobs: tuple[str, ...], i: int, kind: str) -> tuple[str, ...]:
    return (*jobs[:i], kind, *jobs[i + 1 :])


def wrong(state: State) -> str:
    """Return what must never be, empty where all is well."""
    if len(set(state.recipient.effects)) < len(state.recipient.effects):
        return "a result took effect twice"
    agent = state.agent
    has = agent.done | agent.queue
    heard = "sender" not in agent.greets
    if heard and any(kind == ACKED and i not in has for i, kind in enumerate(state.jobs)):
        return "the sender counts as done what the agent's file lacks"
    return ""


def finished(state: State, rules: Rules) -> bool:
    """Whether every job is done and every result is there, once."""
    every = {(i, place) for i in range(rules.jobs) for place in range(RESULTS)}
    return (
        state.jobs == (ACKED,) * rules.jobs
        and state.agent.done == frozenset(range(rules.jobs))
        and not state.agent.out
        and set(state.recipient.effects) == every
    )
