"""The alert rules fire for the trouble that they name, in Prometheus's own engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.inspector.homes import lively

from onceward.metrics import FileMetrics, new_registry
from onceward.testing import ManualClock

ALERTS: Final = Path(__file__).parents[2] / "docs" / "deploy" / "alerts.yaml"
PROMTOOL: Final = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="apt-get install prometheus runs these")

LAST: Final = 30
"""Minutes of each series."""
AGENT: Final = {"agent": "billing"}
PEER: Final = {"agent": "billing", "peer": "shop"}
FIRED: Final[dict[str, tuple[dict[str, str], str, dict[str, str]]]] = {
    "OncewardMessagesWaitForPeer": (
        {'onceward_outbox_oldest_age_seconds{agent="billing", peer="shop"}': "600"},
        "billing has a message that has waited 10m 0s for shop",
        PEER,
    ),
    "OncewardMessagesNotHandled": (
        {
            'onceward_inbox_oldest_age_seconds{agent="billing"}': "1200",
            'onceward_inbox_pending{agent="billing"}': "1",
        },
        "billing has a message that has waited 20m 0s to be handled",
        AGENT,
    ),
    "OncewardLeaseLeftBehind": (
        {'onceward_lease_overdue_seconds{agent="billing"}': "120"},
        "A lease of billing ended 2m 0s ago, and no worker took it over",
        AGENT,
    ),
    "OncewardHandlerFails": (
        {'onceward_lanes_failing{agent="billing"}': "3"},
        "billing has lanes that fail again and again: 3",
        AGENT,
    ),
    "OncewardDeadLetters": (
        {'onceward_dead_letters_made_total{agent="billing"}': "0+1x30"},
        "billing has new dead letters",
        AGENT,
    ),
    "OncewardBreakerOpen": (
        {'onceward_breakers_open{agent="billing"}': "1"},
        "billing leaves peers alone after failures: 1",
        AGENT,
    ),
    "OncewardPauseForgotten": (
        {'onceward_pause_oldest_age_seconds{agent="billing"}': "7200"},
        "billing, or one of its sessions, has been paused for 2h 0m 0s",
        AGENT,
    ),
    "OncewardScheduleCannotSend": (
        {'onceward_schedules_failing{agent="billing"}': "2"},
        "billing has schedules that cannot send: 2",
        AGENT,
    ),
    "OncewardRunTooLong": (
        {'onceward_run_oldest_age_seconds{agent="billing"}': "5400"},
        "A run of billing has been open for 1h 30m 0s",
        AGENT,
    ),
    "OncewardQuestionUnanswered": (
        {'onceward_question_oldest_age_seconds{agent="billing"}': "259200"},
        "A handler of billing has waited 3d 0h 0m 0s for an answer",
        AGENT,
    ),
    "OncewardStreamForked": (
        {'onceward_stream_forks_total{agent="billing"}': "0+1x30"},
        "A parcel for billing did not continue its stream",
        AGENT,
    ),
    "OncewardBackupOld": (
        {'onceward_backup_age_seconds{agent="billing"}': "259200"},
        "The newest backup of billing is 3d 0h 0m 0s old",
        AGENT,
    ),
    "OncewardWalLarge": (
        {'onceward_wal_bytes{agent="billing"}': "134217728"},
        "The WAL of billing has 128MiB",
        AGENT,
    ),
    "OncewardFileUnreadable": (
        {'onceward_file_readable{agent="billing"}': "0"},
        "The file of billing cannot be read",
        AGENT,
    ),
    "OncewardBrokerFills": (
        {
            'onceward_nats_stream_bytes{url="nats://b:4222", stream="OW_PARCELS"}': "70",
            'onceward_nats_stream_bytes{url="nats://b:4222", stream="OW_ANSWERS"}': "100",
            'onceward_nats_stream_max_bytes{url="nats://b:4222", stream="OW_PARCELS"}': "100",
            'onceward_nats_stream_max_bytes{url="nats://b:4222", stream="OW_ANSWERS"}': "100",
        },
        "OW_PARCELS at nats://b:4222 is 70% full",
        {"url": "nats://b:4222", "stream": "OW_PARCELS"},
    ),
    "OncewardCommitsSlow": (
        {
            'onceward_commit_duration_seconds_bucket{agent="billing", le="0.25"}': "0+0x30",
            'onceward_commit_duration_seconds_bucket{agent="billing", le="1"}': "0+60x30",
            'onceward_commit_duration_seconds_bucket{agent="billing", le="+Inf"}': "0+60x30",
        },
        "Commits of billing take 992.5ms",
        AGENT,
    ),
}
"""Series, summary and labels by alert."""
CALM: Final = {name: dict.fromkeys(series, "0") for name, (series, _, _) in FIRED.items()}
"""The same series where nothing is wrong."""


def rules() -> dict[str, dict[str, Any]]:
    """Return the rules by the name of their alert."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def constant(value: str) -> str:
    """Return a value as a series that keeps it; one with a step stays as it is."""
    return value if "x" in value else f"{value}x{LAST}"


def outcome(folder: Path, series: dict[str, str], **expected: list[dict[str, Any]]) -> str:
    """Return what promtool says where these series do not lead to what is expected."""
    given = [{"series": name, "values": constant(value)} for name, value in series.items()]
    tests = [{"interval": "1m", "input_series": given, **expected}]
    path = folder / "alerts.test.yaml"
    whole = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(json.dumps(whole), encoding="utf-8")  # JSON is YAML
    assert PROMTOOL is not None
    command = [PROMTOOL, "test", "rules", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else f"{ran.stdout}\n{ran.stderr}"


def told(name: str, *alerts: dict[str, Any]) -> dict[str, Any]:
    """Return the expectation that an alert has fired so, at the end of the series."""
    return {"eval_time": f"{LAST}m", "alertname": name, "exp_alerts": list(alerts)}


def fired(name: str) -> dict[str, Any]:
    """Return an alert of the table as promtool tells it."""
    _, summary, labels = FIRED[name]
    rule = rules()[name]
    return {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {"summary": summary, "action": rule["annotations"]["action"]},
    }


def test_the_table_has_every_rule() -> None:
    """A new rule is fired here, too."""
    assert rules().keys() == FIRED.keys()


@pytest.mark.parametrize("name", FIRED)
def test_an_alert_fires_for_its_trouble(name: str, tmp_path: Path) -> None:
    """With its labels, and a summary that has the value; no other rule fires with it."""
    expected = [told(each, *([fired(each)] if each == name else [])) for each in FIRED]

    assert "" == outcome(tmp_path, FIRED[name][0], alert_rule_test=expected)


@pytest.mark.parametrize("name", sorted(FIRED.keys() - {"OncewardFileUnreadable"}))
def test_an_alert_is_silent_where_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    """All its series are there, at 0."""
    assert "" == outcome(tmp_path, CALM[name], alert_rule_test=[told(name)])


def test_several_processes_of_a_file_fire_one_alert(tmp_path: Path) -> None:
    """Each exports the same values; the alert has no label of a process."""
    name = "OncewardBreakerOpen"
    series = {f'onceward_breakers_open{{agent="billing", instance="{n}"}}': "1" for n in range(3)}

    assert "" == outcome(tmp_path, series, alert_rule_test=[told(name, fired(name))])


def test_a_home_in_trouble_fires_the_alerts_of_its_troubles(tmp_path: Path) -> None:
    """From files to alerts: their own samples are what Prometheus is given."""
    home, clock = tmp_path / "home", ManualClock()
    lively(home, clock)
    clock.advance(7200)
    registry = new_registry()
    registry.register(FileMetrics([home], clock=clock))
    samples = [each for family in registry.collect() for each in family.samples]
    series = {f"{each.name}{json_labels(each.labels)}": str(float(each.value)) for each in samples}
    firing = [
        ("OncewardBreakerOpen", "shop"), ("OncewardHandlerFails", "billing"),
        ("OncewardMessagesNotHandled", "billing"), ("OncewardMessagesNotHandled", "mailer"),
        ("OncewardMessagesWaitForPeer", "shop"), ("OncewardScheduleCannotSend", "shop"),
    ]  # fmt: skip
    expected = [
        {"labels": f'{{alertname="{name}", agent="{agent}"}}', "value": 1} for name, agent in firing
    ]
    asked = 'count by (alertname, agent) (ALERTS{alertstate="firing"})'
    question = {"expr": asked, "eval_time": f"{LAST}m", "exp_samples": expected}

    assert "" == outcome(tmp_path, series, promql_expr_test=[question])


def json_labels(labels: dict[str, str]) -> str:
    """Return labels as a series has them."""
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"
