"""``onceward inspect``: look at agents' files in a browser."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Final

from onceward.file.environment import env_or_project
from onceward.message.extras import needs
from onceward.message.hosts import is_loopback, url_of
from onceward.ops.cli.exit_codes import SIGNAL, Failed, NothingThere
from onceward.ops.cli.options import Quiet, Several, said
from onceward.ops.cli.output import document, note
from onceward.ops.cli.signals import stops
from onceward.ops.cli.target import ANSWER, Answer
from onceward.ops.cli.tokens import given_token

TOKEN: Final = "ONCEWARD_INSPECT_TOKEN"  # noqa: S105 - the name of a variable
PORT: Final = 8424
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound here
AUDIT: Final = "inspect-audit.jsonl"
Write = Annotated[bool, Quiet, said("Offer actions; each is confirmed and written to --audit.")]
Host = Annotated[str, said("The address to listen at. All but loopback ones need a token.")]
Port = Annotated[int, said("The port; 0 means any free one.")]
Named = Annotated[Several, said("Another host name under which pages are served.")]
Redact = Annotated[Several, said("Hide matches of this regular expression; may be repeated.")]
Audit = Annotated[Path | None, said(f"The log file of actions. Default: {AUDIT} in the home.")]
Report = Annotated[Path | None, said("A fleet report. Default: report.html in the home.")]

TraceUrl = Annotated[
    str | None, said("Where traces are shown, with {trace_id}: messages link to theirs.")
]


def inspect(
    *targets: Path,
    write: Write = False,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    host_name: Named = None,
    redact: Redact = None,
    audit: Audit = None,
    report: Report = None,
    trace_url: TraceUrl = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Show agents' files in a browser: backlog, lanes, journeys of messages, dead letters, history.

    It uses read-only connections, and no writer waits for it. With the metrics extra it serves
    /metrics. With --write, and at any address but a loopback one, a token is needed:
    ONCEWARD_INSPECT_TOKEN, or a new one that is printed with the address. Fields with names such as
    password, secret or token are hidden. An interrupt or terminate signal stops it (exit codes 130,
    143).

    Example: onceward inspect /srv/home

    Example: onceward inspect shop.db billing.db --write --redact 'card|iban'

    Args:
        targets: Homes and agents' files; default ONCEWARD_HOME, else here.

    """
    with needs("inspector", "inspect"):
        from onceward.ops.inspector import app  # noqa: PLC0415 - an extra
        from onceward.serving import ServerThread, bound, configured  # noqa: PLC0415 - an extra
    places = _existing(targets or (Path(env_or_project("home") or "."),))
    token = given_token(TOKEN)
    if token is None and (write or not is_loopback(host)):
        token = secrets.token_urlsafe(24)
    made = app(
        places,
        write=write,
        token=token,
        redact=redact or (),
        hosts=[host, *(host_name or ())],
        audit=_audit(audit, places[0]) if write else None,
        report_at=report,
        trace_url=trace_url,
        metrics=find_spec("prometheus_client") is not None,
    )
    try:
        listening = bound(host, port)
    except OSError as error:
        msg = f"cannot listen at {host} port {port}: {error.strerror or error}: give another --port"
        raise Failed(msg) from error
    url = url_of(ANYWHERE.get(host, host), listening.getsockname()[1], "/")
    told: SimpleQueue[int] = SimpleQueue()
    with ExitStack() as stack:
        stack.enter_context(stops(told))
        served = ServerThread(configured(made), listening, "onceward-inspector-http")
        stack.callback(served.close)
        stack.callback(made.state.streams.stop)
        note(f"inspecting {', '.join(map(str, places))} at {url}{_query(token)}; interrupt to stop")
        number = told.get()
    name = signal.Signals(number).name
    note(f"{name}, stopping")
    if answer.json:
        document({"url": url, "signal": name})
    return SIGNAL + number


def _existing(places: tuple[Path, ...]) -> list[Path]:
    for place in places:
        if not place.exists():
            raise NothingThere(f"there is no {place}: name a home, or agents' files")
    return [*places]


def _query(token: str | None) -> str:
    """Return the token part of the printed address; the user's own token is not printed."""
    return f"?token={token}" if token and not os.environ.get(TOKEN) else ""


def _audit(given: Path | None, place: Path) -> Path:
    """Return the log file of actions; it must be writable before the first action."""
    path = given or (place if place.is_dir() else place.parent) / AUDIT
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        msg = f"actions cannot be written to {path}: {error.strerror}: give another --audit"
        raise Failed(msg) from error
    return path
