"""The files of ``docs/deploy`` work as they stand: alert rules, dashboard, unit, image."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.observe.series import exported

from onceward import Postbox
from onceward.ops.cli.app import build
from onceward.ops.observe import names
from onceward.ops.observe.listener_metrics import LISTENER_METRICS
from onceward.ops.observe.nats_metrics import NATS_METRICS
from onceward.transports.network.nats_setup import FILLING

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
NAME = re.compile(r"\bonceward_\w+")
BY = re.compile(r"\bby \(([^)]*)\)")
UNIT = DEPLOY / "onceward-work@.service"


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))[
        "panels"
    ]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where an expression stands, and the expression."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


@pytest.mark.parametrize(("where", "expr"), [*expressions()])
def test_expressions_use_exported_names(where: str, expr: str) -> None:
    """A metric that is renamed breaks its alert and its panel here, not at night."""
    known = exported()
    used = set(NAME.findall(expr))

    assert used, where
    assert set() == used - known.keys()
    labels = {"le", *(label for name in used for label in known[name])}
    grouped = {label.strip() for group in BY.findall(expr) for label in group.split(",")}
    assert set() == grouped - labels


@pytest.mark.parametrize(("where", "expr"), [*expressions()])
def test_expressions_count_no_file_twice(where: str, expr: str) -> None:
    """What files tell is exported by each process of the file: only the largest value is taken."""
    of_files = {name for name in NAME.findall(expr) if not name.endswith("_bucket")}
    taken = re.findall(r"(?:max|min) by \([^)]*\) \((?:rate|increase)?\(?(onceward_\w+)", expr)

    assert of_files == set(taken), where
    assert ("_bucket" in expr) == ("histogram_quantile" in expr)
    assert expr.count("(") == expr.count(")")
    assert [] == [
        name
        for name in of_files
        if ("rate(" in expr or "increase(" in expr) != name.endswith("_total")
    ]


def test_every_metric_that_deserves_an_alarm_has_one() -> None:
    """The table of the page and the rules speak of the same metrics."""
    page = (ROOT / "docs" / "how-to" / "watch-it.md").read_text(encoding="utf-8")
    table = page.partition("## What deserves an alarm")[2].partition("\n\n`onceward")[0]
    told = {
        name for line in table.splitlines() if line.startswith("|") for name in NAME.findall(line)
    }
    alarmed = {name for rule in rules() for name in NAME.findall(rule["expr"])}

    assert set() == told - alarmed - {"onceward_lanes_leased", "onceward_peers"}


def test_alarm_and_doctor_call_a_stream_full_at_the_same_fraction() -> None:
    """Both begin to warn while there is time to look."""
    [rule] = [rule for rule in rules() if rule["alert"] == "OncewardBrokerFills"]

    assert rule["expr"].endswith(f" >= {FILLING}")


def test_the_page_lists_all_metrics() -> None:
    """Each with the words that a scrape has."""
    page = (ROOT / "docs" / "how-to" / "watch-it.md").read_text(encoding="utf-8")
    known = {each.name: each.about for each in (*names.GAUGES, *names.COUNTERS)}
    known |= {each.name: each.about for each in names.DURATIONS.values()}
    known |= NATS_METRICS | LISTENER_METRICS

    assert [] == [name for name in known if f"| `{name}` | {known[name]} |" not in page]
    assert f"| `{names.OLDEST_BY_PEER}` |" in page
    assert f"| `{names.READABLE}` |" in page


def test_rules_are_whole() -> None:
    """Each has a name of its own, a severity, a summary and an action that names a command."""
    found = rules()

    assert len(found) == len({rule["alert"] for rule in found})
    for rule in found:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "action"} == rule["annotations"].keys()
        assert rule["alert"].startswith("Onceward")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_the_dashboard_can_be_imported() -> None:
    """Panels have ids of their own, do not overlap, and ask the data source that is chosen."""
    found = panels()
    cells = [
        (x, y)
        for panel in found
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(found) == len({panel["id"] for panel in found})
    assert len(cells) == len(set(cells))
    assert 24 > max(x for x, _ in cells)
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in found}


def test_charts_by_agent_show_the_highest_ones() -> None:
    """A home of a thousand agents is ten lines; how many is chosen above the charts."""
    by_agent = [
        target["expr"]
        for panel in panels()
        if panel["type"] == "timeseries"
        for target in panel["targets"]
        if "by (agent" in target["expr"]
    ]

    assert len(by_agent) > 10
    assert [] == [expr for expr in by_agent if not expr.startswith("topk($top, ")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    """Every line of it is known; the program itself need not be installed here."""
    text = UNIT.read_text(encoding="utf-8").replace("/usr/local/bin/onceward", "/bin/true")
    unit = tmp_path / UNIT.name
    unit.write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(unit).replace("@.", "@billing.")]
    Path(command[-1]).symlink_to(unit)
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert [] == [line for line in ran.stderr.splitlines() if "onceward-work" in line]


def test_the_unit_runs_a_command_that_exists() -> None:
    """With options that it has, and the exit codes of a graceful stop as success."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    [start] = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    program, *words = shlex.split(start.replace("%i", "billing"))

    assert "onceward" == Path(program).name
    build(words).parse_args(words, exit_on_error=False, print_error=False)
    assert "SuccessExitStatus=130 143" in lines


def test_the_image_runs_a_command_that_exists() -> None:
    """As process 1, without a shell, as a user of its own; a pause does not restart it."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line[:1].isupper())
    entry, words = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
    probe = json.loads(lines["HEALTHCHECK"].partition("CMD")[2])

    assert ["onceward"] == entry
    build(words).parse_args(words, exit_on_error=False, print_error=False)
    compile(probe[-1], "probe", "exec")
    assert f"http://{words[-1]}/live" in probe[-1]
    assert ("SIGTERM", "onceward") == (lines["STOPSIGNAL"], lines["USER"])
    made = f"install -d -o {lines['USER']} -g {lines['USER']} -m 0700 {lines['VOLUME']}"
    assert made in " ".join(lines["RUN"].split())


def test_the_web_application_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers at one file: an order that is sent to both is one message; a pause is told."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```python app\.py\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("home").mkdir()
    with Postbox("home/billing.db", agent="billing", start=False):
        pass
    workers: list[dict[str, Any]] = [{"__name__": f"worker{index}"} for index in range(2)]
    for worker in workers:
        exec(text, worker)  # noqa: S102 - running the pages is the point

    async def play() -> list[tuple[int, Any]]:
        one, two = (worker["app"] for worker in workers)
        async with one.router.lifespan_context(one), two.router.lifespan_context(two):
            sent = [await ask(app, "POST", "/order", {"key": "7"}) for app in (one, two)]
            before = await ask(two, "GET", "/ready")
            await one.state.box.file.pause()
            return [*sent, (before[0], None), ((await ask(two, "GET", "/ready"))[0], None)]

    [first, second, ready, paused] = asyncio.run(play())

    assert (202, first) == (first[0], second)
    assert (200, 503) == (ready[0], paused[0])


PRELOADED = """
import os, runpy
import shop
hooks = runpy.run_path("gunicorn.conf.py")
if os.fork() == 0:
    hooks["post_fork"](None, None)
    shop.box().send("billing", 1)
    shop.box().flush()
    hooks["worker_exit"](None, None)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_server_that_forks_opens_the_postbox_in_each_worker(tmp_path: Path) -> None:
    """The hooks of the page open it after the fork, and close it: the message is in its file."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    for name in ("shop.py", "gunicorn.conf.py"):
        text = page.partition(f"```python {name}\n")[2].partition("```")[0]
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "home").mkdir()
    with Postbox(tmp_path / "home" / "billing.db", agent="billing", start=False) as billing:
        done = subprocess.run(
            [sys.executable, "-c", PRELOADED],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        got = billing.receive()

    assert ("0\n", "") == (done.stdout, done.stderr)
    assert got is not None
    assert 1 == got.body


async def ask(app: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and JSON of an app's answer."""
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return told[0]["status"], json.loads(told[1]["body"])
