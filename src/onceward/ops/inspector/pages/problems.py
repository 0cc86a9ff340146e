"""Problems of all agents, the like ones put together, each with its repair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.message.clock import Millis
from onceward.ops.inspector.guard import FORM, form_mark, form_token, is_own_form
from onceward.ops.inspector.pages.act import FORBIDDEN, audit, sent
from onceward.ops.inspector.refresher import Snapshot, page_reader
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.views.failures import fingerprint, letters_like

ROWS: Final = 200
"""Most problems that the page shows."""
AGENTS: Final = 100
"""Most agents that the page of one problem shows."""


@dataclass(frozen=True, slots=True)
class Affected:
    """One agent that has a problem."""

    key: str
    count: int
    sample: str
    """Id of a message, or the name of the peer or the schedule."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Failures of one kind, type and error, in all files that have them."""

    fingerprint: str
    kind: str
    type: str
    error: str
    first_at: Millis | None
    last_at: Millis | None
    agents: tuple[Affected, ...]

    @property
    def count(self) -> int:
        """The number of its failures, over all agents."""
        return sum(each.count for each in self.agents)

    @property
    def acts(self) -> bool:
        """Whether it stays until a person acts."""
        return self.kind != "retry"

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """Ways to mend it, or to end it."""
        return REPAIRS.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Repair:
    """One way to end a problem in a file."""

    verb: str
    title: str
    run: Callable[[Postbox, str, tuple[str, ...]], int]
    """Repairs a file: takes its box, the sample, the dead letters; returns how many it mended."""
    destroys: bool = False


def _replay(box: Postbox, _: str, letters: tuple[str, ...]) -> int:
    done, errors = 0, list[OncewardError]()
    for each in letters:
        try:
            box.dead_letters.replay(each)
            done += 1
        except OncewardError as error:  # it is gone, or its time to live is over
            errors.append(error)
    if errors and not done:
        raise errors[0]
    return done


def _discard(box: Postbox, _: str, letters: tuple[str, ...]) -> int:
    return sum(box.dead_letters.discard(each) for each in letters)


def _reset(box: Postbox, peer: str, _: tuple[str, ...]) -> int:
    box.peers.reset(peer)
    return 1


def _pause(box: Postbox, schedule: str, _: tuple[str, ...]) -> int:
    return int(box.schedules.pause(schedule))


def _resume(box: Postbox, _: str, __: tuple[str, ...]) -> int:
    box.file.resume()
    return 1


REPAIRS: Final = {
    "dead letter": (
        Repair("replay", "Replay", _replay),
        Repair("discard", "Discard", _discard, destroys=True),
    ),
    "peer": (Repair("reset", "Try again now", _reset),),
    "schedule": (Repair("pause", "Pause the schedule", _pause),),
    "paused": (Repair("resume", "Resume", _resume),),
}
"""Repairs by the kind of problem, the first one offered first."""


def gather(found: Iterable[Snapshot]) -> list[Problem]:
    """Return the problems of some files: those that need a person first, then by their count."""
    groups: dict[str, Problem] = {}
    for one in (each for snapshot in found for each in _of(snapshot)):
        known = groups.get(one.fingerprint)
        groups[one.fingerprint] = one if known is None else _merged(known, one)
    return sorted(groups.values(), key=lambda each: (not each.acts, -each.count, each.error))


def _merged(one: Problem, other: Problem) -> Problem:
    firsts = [each.first_at for each in (one, other) if each.first_at is not None]
    lasts = [each.last_at for each in (one, other) if each.last_at is not None]
    newer = other if (other.last_at or 0) > (one.last_at or 0) else one
    return replace(
        newer,
        first_at=min(firsts, default=None),
        last_at=max(lasts, default=None),
        agents=(*one.agents, *other.agents),
    )


def _of(found: Snapshot) -> Iterator[Problem]:
    """Yield the problems of one file."""
    if found.problem is not None:
        yield _own(found, "unreadable", found.problem, found.taken_at)
        return
    if found.overview is not None and (paused_at := found.overview.file.paused_at) is not None:
        yield _own(found, "paused", "it handles and sends nothing", paused_at)
    for each in found.failures:
        affected = Affected(found.key, each.count, each.sample)
        yield Problem(
            each.fingerprint, each.kind, each.type, each.error, each.first_at, each.last_at,
            (affected,),
        )  # fmt: skip


def _own(found: Snapshot, kind: Any, error: str, since_at: Millis) -> Problem:
    """Return a problem of a whole file, not of a message."""
    mark = fingerprint(kind, "", error)
    return Problem(mark, kind, "", error, since_at, None, (Affected(found.key, 1, ""),))


def problems(request: Request) -> Response:
    """Answer with the page of all problems."""
    site = site_of(request)
    found = gather(site.refresher.snapshots.values())
    return site.html(request, "problems.html", problems=found[:ROWS], found=len(found))


def problem(request: Request) -> Response:
    """Answer with the page of one problem: what a repair is going to do."""
    site = site_of(request)
    found = _wanted(request)
    mark = form_mark(request)
    answer = site.html(
        request,
        "problem.html",
        problem=found,
        shown=found.agents[:AGENTS],
        form=form_token(site.secret, mark),
    )
    answer.set_cookie(FORM, mark, httponly=True, samesite="strict")
    return answer


async def repair(request: Request) -> Response:
    """Repair a problem in all files that have it, and go back to the list."""
    site = site_of(request)
    if not site.write:
        raise HTTPException(FORBIDDEN, "these pages only read: start with --write to change things")
    given = await sent(request)
    if not is_own_form(request, site.secret, given.get("form", "")):
        raise HTTPException(FORBIDDEN, "this form is not from a page of ours: confirm it again")
    found = _wanted(request)
    wanted = request.path_params["verb"]
    way = next((each for each in found.repairs if each.verb == wanted), None)
    if way is None:
        raise HTTPException(NOT_FOUND, "this problem has no repair of that name")
    if way.destroys and not given.get("sure"):
        raise HTTPException(FORBIDDEN, "tick the box: what is discarded cannot be replayed")
    told = await run_in_threadpool(_repaired, site, request, found, way)
    return RedirectResponse(f"/problems?notice={site.notice(told)}", 303)


def _repaired(site: Site, request: Request, found: Problem, way: Repair) -> str:
    """Repair each file in its turn; one that fails does not keep the others from it."""
    done, failed = 0, []
    for each in found.agents:
        given = {"problem": found.fingerprint} | ({"id": each.sample} if each.sample else {})
        audit(site, request, each.key, given, "asked")
        try:
            count = _in_file(site, each, found, way)
            done, told = done + count, f"{way.title}: {count}"
        except OncewardError as error:
            told = f"not done: {error}"
            failed.append(f"{each.key}: {error}")
        audit(site, request, each.key, given, told)
    site.refresher.refresh()
    lost = f"; not done in {len(failed)} agents, first {failed[0]}" if failed else ""
    wanted = found.count if found.kind == "dead letter" else len(found.agents)
    return f"{way.title}: {done:,} of {wanted:,}{lost}"


def _in_file(site: Site, each: Affected, found: Problem, way: Repair) -> int:
    path = site.path(each.key)
    letters: tuple[str, ...] = ()
    if found.kind == "dead letter":
        with page_reader(path) as reader:
            letters = letters_like(reader, found.fingerprint)
    with Postbox(path, start=False) as box:
        return way.run(box, each.sample, letters)


def _wanted(request: Request) -> Problem:
    """Return the problem that an address names; raise a 404 where it is gone."""
    mark = request.path_params["fingerprint"]
    snapshots = site_of(request).refresher.snapshots.values()
    for each in gather(snapshots):
        if each.fingerprint == mark:
            return each
    raise HTTPException(NOT_FOUND, "this problem is gone: it was mended, or has another error now")
