"""Metrics: their names and labels, where they come from, and what they cost."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.observe.series import exported

from onceward import Agent, Context, Postbox, Reject, Retry, Run
from onceward.nats import NatsListener, NatsStream
from onceward.ops.observe import names
from onceward.ops.observe.exposition import text_of
from onceward.ops.observe.file_metrics import OTHER, FileMetrics
from onceward.ops.observe.message_metrics import MessageMetrics
from onceward.ops.observe.nats_metrics import NatsMetrics
from onceward.testing import Controls, ManualClock

Series = dict[tuple[str, ...], float]


def scraped(registry: CollectorRegistry) -> dict[str, Series]:
    """Return the values that a scrape has, by name and by the values of the labels."""
    _, text = text_of(registry)
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = tuple(sample.labels.values())
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def of_files(*places: Path, **options: object) -> CollectorRegistry:
    """Return a registry with the metrics of files."""
    registry = CollectorRegistry()
    registry.register(FileMetrics(places, **options))  # type: ignore[arg-type]  # its own options
    return registry


def test_files_tell_gauges_and_totals(shop: Postbox, billing: Postbox) -> None:
    """Each agent of a home is a label; a new agent is there at the next scrape."""
    home = shop.file.path.parent
    registry = of_files(home)
    shop.send_many([("billing", 1), ("billing", 2)])
    shop.run_until_idle()
    shop.send("billing", 3)
    first = scraped(registry)
    Postbox(home / "third.db", agent="third", start=False).close()

    assert {("shop",): 1.0, ("billing",): 0.0} == first["onceward_outbox_pending"]
    assert {("shop",): 0.0, ("billing",): 2.0} == first["onceward_inbox_pending"]
    assert {("shop",): 3.0, ("billing",): 0.0} == first["onceward_messages_enqueued_total"]
    assert {("shop",): 1.0, ("billing",): 1.0} == first["onceward_file_readable"]
    assert {("shop",), ("billing",), ("third",)} == scraped(registry)["onceward_paused"].keys()
    assert billing.agent


def test_ages_grow_while_a_file_does_not_change(tmp_path: Path) -> None:
    """An age is of the moment of the scrape, not of the last change."""
    clock, found = ManualClock(), list[Series]()
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as box:
        box.send("a", 1)
        box.run_until_idle()
        registry = of_files(box.file.path, clock=clock)
        for seconds in (90, 10):
            clock.advance(seconds)
            found.append(scraped(registry)["onceward_inbox_oldest_age_seconds"])

    assert [{("a",): 90.0}, {("a",): 100.0}] == found


def test_what_a_person_may_forget_has_an_age(tmp_path: Path) -> None:
    """The pause of a session or of the agent, a run that goes on, and an unanswered question."""
    clock, agent, within = ManualClock(), Agent("a"), dict[str, float]()
    names_of = ("pause_oldest", "question_oldest", "run_oldest")

    def ages() -> dict[str, float]:
        found = scraped(of_files(tmp_path / "a.db", clock=clock))
        return {name: found[f"onceward_{name}_age_seconds"]["a",] for name in names_of}

    @agent.runs("chat")
    def turn(run: Run) -> None:
        clock.advance(30)
        within.update(ages())

    @agent.on("job")
    def job(_: int, ctx: Context) -> None:
        ctx.ask("crm", 1, type="question", reply=int)

    testing = Controls(clock=clock)
    with Postbox(
        tmp_path / "a.db", agent=agent, start=False, testing=testing, hold_unknown=True
    ) as box:
        calm = ages()
        box.session("chat").send("a", 1)
        box.run_until_idle()
        box.send("a", 1, type="job")
        box.run_until_idle()
        box.session("chat").send("a", 2)
        box.run_until_idle()
        clock.advance(60)
        box.runs.pause("chat")
        clock.advance(60)
        box.file.pause()
        clock.advance(5)
        after = ages()

    assert dict.fromkeys(names_of, 0.0) == calm
    assert 30.0 == within["run_oldest"]
    assert {"pause_oldest": 65.0, "question_oldest": 155.0, "run_oldest": 0.0} == after


def test_peers_beyond_the_limit_are_one_label(shop: Postbox) -> None:
    """The first keep their series also while nothing waits for them; the worst age is kept."""
    folder = shop.file.path.parent
    for name in ("a", "b", "c", "d"):
        shop.peers.add(name, f"file:{folder}/{name}/{name}.db")
    shop.send_many([("b", 1), ("c", 1)])
    registry = of_files(shop.file.path, peers=2)
    scraped(registry)
    shop.send_many([("a", 1), ("d", 1)])
    shop._db.write(
        lambda tx: tx.run("UPDATE _onceward_outbox SET created_at = 0 WHERE recipient = 'd'")
    )
    found = scraped(registry)[names.OLDEST_BY_PEER]

    assert {("shop", "b"), ("shop", "c"), ("shop", OTHER)} == found.keys()
    assert found["shop", OTHER] > 1e9


def test_a_file_that_cannot_be_read_is_told(shop: Postbox) -> None:
    """It has one series, and the others are whole."""
    bad = shop.file.path.with_name("bad.db")
    bad.write_bytes(b"no database" * 1000)
    found = scraped(of_files(shop.file.path.parent))

    assert {("shop",): 1.0, ("bad",): 0.0} == found["onceward_file_readable"]
    assert {("shop",)} == found["onceward_outbox_pending"].keys()


def test_a_file_whose_turn_has_not_come_is_not_called_unreadable(tmp_path: Path) -> None:
    """A large home takes several scrapes to be read; each tells the files that it knows."""
    for name in ("a", "b", "c"):
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    registry = of_files(tmp_path, within=0)
    told = [list(scraped(registry)["onceward_file_readable"].values()) for _ in range(3)]

    assert [[1.0], [1.0] * 2, [1.0] * 3] == told


def test_two_files_of_one_agent_are_told_apart(shop: Postbox, tmp_path: Path) -> None:
    """A scrape with the same series twice would be refused whole."""
    other = tmp_path / "copy" / "shop.db"
    other.parent.mkdir()
    Postbox(other, agent="shop", start=False).close()
    found = scraped(of_files(shop.file.path, other))

    assert {(f"shop {shop.file.path}",), (f"shop {other}",)} == found["onceward_paused"].keys()


def test_totals_survive_pruning(tmp_path: Path) -> None:
    """Retention removes rows and changes no counter."""
    clock = ManualClock()
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as box:
        box.send("a", 1)
        box.run_until_idle()
        acknowledge(box)
        box.run_until_idle()
        before = scraped(of_files(box.file.path))
        clock.advance(400 * 86_400)
        box.file.run_maintenance()
        rows = box.query("SELECT count(*) FROM onceward_inbox")
        after = scraped(of_files(box.file.path))

    counters = [each.name for each in names.COUNTERS]
    assert [(0,)] == rows
    assert [before[name] for name in counters] == [after[name] for name in counters]
    assert {("a",): 1.0} == after["onceward_messages_processed_total"]


def test_registering_opens_no_file(shop: Postbox) -> None:
    """Names are known without reading, so that a broken file breaks no start."""
    metrics = FileMetrics([shop.file.path])
    described = {each.name for each in metrics.describe()}

    assert 0 == metrics._snapshots.reads
    assert {each.name for each in metrics.collect()} == described


def test_processes_measure_what_they_do(tmp_path: Path) -> None:
    """The way, the wait, handlers by how they ended, and commits."""
    clock, agent, registry = ManualClock(), Agent("b"), CollectorRegistry()

    @agent.on("json")
    def handle(body: int) -> None:
        if body:
            raise (Retry(after=60) if body == 1 else Reject("no"))

    metrics = MessageMetrics(registry)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b,
    ):
        offs = [metrics.watch(a), metrics.watch(b)]
        for body in (0, 1, 2):
            a.session(f"s{body}").send("b", body)
        clock.advance(2)
        a.run_until_idle()
        clock.advance(3)
        b.run_until_idle()
        for off in offs:
            off()
        a.send("b", 0)
        a.run_until_idle()
    found = scraped(registry)

    assert {("a",): 3.0} == found["onceward_send_to_accept_seconds_count"]
    assert {("a",): 6.0} == found["onceward_send_to_accept_seconds_sum"]
    assert {("b",): 1.0} == found["onceward_accept_to_handled_seconds_count"]
    assert {("b",): 3.0} == found["onceward_accept_to_handled_seconds_sum"]
    ends = {("b", "processed"): 1.0, ("b", "retried"): 1.0, ("b", "dead_lettered"): 1.0}
    assert ends == found["onceward_handler_duration_seconds_count"]
    assert {("a",), ("b",)} == found["onceward_commit_duration_seconds_count"].keys()


def test_types_are_labels_only_where_they_are_named(tmp_path: Path) -> None:
    """Those that are named, and one for all others."""
    registry = CollectorRegistry()
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        MessageMetrics(registry, types=["paid"]).watch(box)
        for kind in ("paid", "x", "y"):
            box.send("a", 1, type=kind)
            box.run_until_idle()
            acknowledge(box)
    found = scraped(registry)

    assert {("a", "paid"): 1.0, ("a", OTHER): 2.0} == found[
        "onceward_accept_to_handled_seconds_count"
    ]


def test_every_exported_name_is_listed(tmp_path: Path) -> None:
    """Dashboards and alerts are tested against this list, so it is that of a real scrape."""
    agent, registry = Agent("a"), CollectorRegistry()
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent=agent, start=False) as box,
        Postbox(tmp_path / "b.db", agent="b", start=False),
    ):
        MessageMetrics(registry).watch(box)
        box.send("a", 1)
        box.send("b", 1)
        box.run_until_idle()
        box.send("b", 1)
        registry.register(FileMetrics([tmp_path]))
        registry.register(NatsMetrics([Told("nats://broker:4222")]))
        found = scraped(registry)

    assert exported().keys() == found.keys()
    assert [] == [name for name, series in found.items() if any(map(math.isnan, series.values()))]


class Told(NatsListener):
    """A listener with one stream that it may see, and one that has no limit."""

    def streams(self) -> list[NatsStream]:
        """Return both."""
        return [NatsStream("P", "ok", "", 7, 10), NatsStream("A", "differs", "", 7, 0)]


def test_the_streams_of_a_server_are_exported() -> None:
    """By server and stream; one without a limit is never full, and is not exported."""
    registry = CollectorRegistry()
    registry.register(NatsMetrics([Told("nats://broker:4222")]))
    place = ("P", "nats://broker:4222")

    assert {
        "onceward_nats_stream_bytes": {place: 7.0},
        "onceward_nats_stream_max_bytes": {place: 10.0},
    } == scraped(registry)


@pytest.mark.parametrize("name", exported())
def test_names_follow_the_conventions(name: str) -> None:
    """A prefix, base units, ``_total`` for counters only."""
    counters = {each.name for each in names.COUNTERS}

    assert name.startswith("onceward_")
    assert name == name.lower()
    assert (name in counters) == name.endswith("_total")
    assert not any(unit in name for unit in ("_ms", "_millis", "_kb", "_minutes"))


def test_nothing_is_loaded_or_called_where_it_is_not_asked_for(tmp_path: Path) -> None:
    """A worker without metrics does not load the library, and measures no commit."""
    code = """
import sys
from onceward import Postbox
import onceward.ops.cli.work, onceward.ops.cli.home
with Postbox(sys.argv[1], agent="a", start=False) as box:
    print(box._db.writer.measured_commit, bool(box._hooks), "prometheus_client" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.db")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "None False False\n" == ran.stdout


def acknowledge(box: Postbox) -> None:
    """Take the next message and acknowledge it."""
    message = box.receive()
    assert message is not None
    message.ack()
