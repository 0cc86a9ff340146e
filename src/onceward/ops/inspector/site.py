"""Share files, snapshots, templates and permissions among all pages."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from onceward.file.read_only import FileReader
from onceward.hooks import AuditLog
from onceward.message.clock import Millis
from onceward.message.redaction import Redaction, visible
from onceward.ops.inspector import words
from onceward.ops.inspector.actions import Action, Given, Outcome
from onceward.ops.inspector.guard import FORM, form_token
from onceward.ops.inspector.refresher import Refresher, Snapshot, page_reader
from onceward.ops.inspector.silences import NAME as SILENCES
from onceward.ops.inspector.silences import Silences
from onceward.ops.inspector.targets import Targets
from onceward.ops.inspector.visit import VISIT, local
from onceward.ops.views.filters import told

T = TypeVar("T")
HERE: Final = Path(__file__).parent
FILTERS: Final = (
    "age", "span", "moment", "rfc3339", "number", "bounded", "size", "short", "percent", "rate",
    "tone", "holder",
)  # fmt: skip
"""Functions of ``words`` that templates use as filters."""
NOTICES: Final = 100
"""Maximum outcomes of actions that are remembered until their page is shown."""
NOT_FOUND: Final = 404
TRACE_ID: Final = "{trace_id}"
"""Placeholder of the id in the address of a trace."""


@dataclass(frozen=True, slots=True)
class Undo:
    """How to undo an action in each file that it changed."""

    verb: str
    targets: tuple[tuple[str, Given], ...]
    """Files by key, and the objects to change back."""
    back: str
    """The page that shows the outcome."""

    @classmethod
    def of(cls, action: Action, done: Iterable[tuple[str, Outcome]], back: str) -> Undo | None:
        """Return the undo of an action with its outcomes by file, or None."""
        targets = tuple((key, Given(ids=each.ids)) for key, each in done if each.done)
        return cls(action.undo, targets, back) if action.undo and targets else None

    @property
    def count(self) -> int:
        """Number of objects that it changes back."""
        return sum(len(given.ids) or 1 for _, given in self.targets)


@dataclass(frozen=True, slots=True)
class Notice:
    """The outcome of an action, for the next page."""

    text: str
    undo: str | None = None
    """Name of the undo, or None."""


class Site:
    """The inspector of some files, shared by the threads of requests."""

    def __init__(
        self,
        targets: Targets,
        refresher: Refresher,
        *,
        redaction: Redaction,
        audit: AuditLog | None = None,
        report: Path | None = None,
        trace_url: str | None = None,
        secret: str | None = None,
    ) -> None:
        self.targets, self.refresher = targets, refresher
        self.redaction, self.audit, self.report = redaction, audit, report
        self._trace_url = trace_url
        self.secret = secrets.token_bytes(32) if secret is None else secret.encode()
        self._notices: OrderedDict[str, Notice] = OrderedDict()
        self._undos: OrderedDict[str, Undo] = OrderedDict()
        self.silences = Silences(targets.home / SILENCES)
        self._keys: tuple[int, dict[str, str]] = (-1, {})
        self._templates = _environment(redaction)

    @property
    def write(self) -> bool:
        """Whether pages offer actions to the reader of this request."""
        return self.audit is not None and VISIT.get().reader.write

    def now(self) -> Millis:
        """Return the current moment."""
        return self.refresher.clock.now()

    # -- files ------------------------------------------------------------------------------

    def path(self, key: str) -> Path:
        """Return the file of a key; raise a 404 if there is none."""
        known = self.refresher.snapshots.get(key)
        path = known.path if known else self.targets.files().get(key)
        if path is None:
            raise HTTPException(NOT_FOUND, f"there is no file {key} here")
        return path

    def reading(self, request: Request) -> AbstractContextManager[FileReader]:
        """Open the file in an address for a block."""
        return page_reader(self.path(request.path_params["key"]))

    def snapshot(self, key: str) -> Snapshot | None:
        """Return the last snapshot of a file."""
        return self.refresher.snapshots.get(key)

    def key_of(self, agent: str) -> str | None:
        """Return the key of an agent's file; None if its file is not shown here."""
        version, known = self._keys
        if version != self.refresher.version:
            found = [*self.refresher.snapshots.values()]
            known = {each.key: each.key for each in found}  # also of unreadable files
            known |= {each.agent: each.key for each in reversed(found) if each.overview}
            self._keys = (self.refresher.version, known)
        return known.get(agent)

    # -- pages ------------------------------------------------------------------------------

    def html(
        self, request: Request, template: str, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """Return a page; every value in it is escaped."""
        path, query = quote(request.scope["path"]), request.url.query
        key = request.path_params.get("key")
        shared = {
            "site": self,
            "now": self.now(),
            "path": path,
            "here": f"{path}?{query}" if query else path,
            "own": form_token(self.secret, request.cookies.get(FORM, "")),
            "notice": self._notices.pop(request.query_params.get("notice", ""), None),
            "agent_url": self.agent_url,
            "key": key,
            "keys": () if key is None else (key,),
        }
        return HTMLResponse(
            self._templates.get_template(template).render(shared | context), status_code=status
        )

    def agent_url(self, agent: str | None, *parts: str, **query: str | int | None) -> str | None:
        """Return the address of a page about an agent; None if its file is not shown."""
        key = None if agent is None else self.key_of(agent)
        return None if key is None else address(key, *parts, **query)

    def trace(self, trace_id: str | None) -> str | None:
        """Return the address of a trace, or None."""
        if trace_id is None or self._trace_url is None:
            return None
        return self._trace_url.replace(TRACE_ID, trace_id)

    def notice(self, text: str, undo: Undo | None = None) -> str:
        """Remember the outcome of an action for the next page; return its name."""
        name = _remembered(self._undos, undo) if undo is not None else None
        return _remembered(self._notices, Notice(text, name))

    def undo(self, name: str) -> Undo | None:
        """Return the undo of an action, once; None if it is no longer known."""
        return self._undos.pop(name, None)


def _remembered(known: OrderedDict[str, T], value: T) -> str:
    """Remember a value under a new name; forget the oldest if there are too many."""
    name = secrets.token_urlsafe(9)
    known[name] = value
    while len(known) > NOTICES:
        known.popitem(last=False)
    return name


def address(key: str, *parts: str, **query: str | int | None) -> str:
    """Return the address of a page about one file."""
    path = "/".join(quote(part, safe="") for part in ("agents", key, *parts))
    return with_query(local(f"/{path}"), **query)


def with_query(path: str, **query: str | int | None) -> str:
    """Return a path with the parameters that have a value."""
    named = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(named)}" if named else path


def site_of(request: Request) -> Site:
    """Return the site of a request."""
    site: Site = request.app.state.site
    return site


class _Compiled(BytecodeCache):
    """Cache of compiled templates for all sites of this process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load the compiled code of the same source, if there is any."""
        bucket.code = self._kept.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Store the compiled code of a source."""
        self._kept[bucket.key, bucket.checksum] = bucket.code


COMPILED: Final = _Compiled()


def _environment(redaction: Redaction) -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=COMPILED,
    )
    made.filters |= {name: getattr(words, name) for name in FILTERS}
    made.filters["hidden"] = redaction.error
    made.globals |= {
        "address": address,
        "local": local,
        "with_query": with_query,
        "filter_of": told,
    }
    for name in made.list_templates():
        made.get_template(name)  # compiled now, so that the first reader does not wait
    return made


def _visible(value: object) -> object:
    """Return the output of a template value, with hidden characters of plain text made visible."""
    return visible(value) if type(value) is str else value
