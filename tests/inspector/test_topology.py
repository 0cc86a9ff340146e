"""The drawing of agents and what flows between them, and the pages of what is not a message."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from onceward import Postbox
from onceward.file.read_only import opened, opened_any
from onceward.ops.inspector import app, words
from onceward.ops.inspector.topology import (
    BOX,
    COLUMN,
    HIGHEST,
    MOST,
    PATIENCE,
    ROW,
    Drawing,
    Flow,
    drawing,
    merged,
)
from onceward.ops.views import directory, lists
from onceward.ops.views.links import LATELY, SAMPLE, links
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from tests.inspector.conftest import Home

NOW = 1_000_000_000


def drawn(*flows: Flow) -> Drawing:
    """Return the drawing of some flows."""
    found = drawing({(each.sender, each.recipient): each for each in flows}, NOW)
    assert found is not None
    return found


def places(found: Drawing) -> dict[str, tuple[int, int]]:
    """Return the place of each agent."""
    return {node.name: (node.x, node.y) for node in found.nodes}


def test_agents_stand_from_left_to_right_as_messages_go() -> None:
    """The one that begins is left; replies turn nothing round."""
    found = drawn(
        Flow("web", "orders", rate=9), Flow("orders", "web", rate=8), Flow("orders", "mail", rate=1)
    )
    xs = {name: x for name, (x, _) in places(found).items()}

    assert xs["web"] < xs["orders"] < xs["mail"]
    assert COLUMN == xs["orders"] - xs["web"]


def test_both_directions_are_one_line_with_two_tips() -> None:
    """As wide as both together, and wider than that of fewer messages."""
    [both, one] = sorted(
        drawn(Flow("a", "b", rate=50), Flow("b", "a", rate=50), Flow("a", "c", rate=1)).lines,
        key=lambda line: -line.width,
    )

    assert (2, 1) == (len(both.tips), len(one.tips))
    assert [("a", "b"), ("b", "a")] == [(flow.sender, flow.recipient) for flow in both.flows]


def test_what_fails_is_red_and_what_waits_is_amber() -> None:
    """One direction that fails makes the line red; it is drawn above the others."""
    found = drawn(
        Flow("a", "b", rate=1, error="refused"), Flow("b", "a", rate=1),
        Flow("a", "c", waits_since=NOW - PATIENCE - 1), Flow("a", "d", waits_since=NOW - PATIENCE),
    )  # fmt: skip
    levels = {line.flows[0].recipient: line.level for line in found.lines}

    assert {"b": "act", "c": "wait", "d": "ok"} == levels
    assert ["ok", "wait", "act"] == [line.level for line in found.lines]


def test_thirty_agents_do_not_cover_each_other() -> None:
    """A long column is broken; more agents than can be read are not drawn."""
    star = [Flow("hub", f"agent-{n:02}", rate=n) for n in range(MOST - 1)]
    found = drawn(*star)
    at = sorted(places(found).values())

    assert MOST == len(at)
    assert HIGHEST >= max([*map([x for x, _ in at].count, {x for x, _ in at})])
    assert [] == [
        (one, other) for one, other in pairwise(at)
        if one[0] == other[0] and other[1] - one[1] < ROW
    ]  # fmt: skip
    assert found.width >= max(x for x, _ in at) + BOX[0]
    assert found.height >= max(y for _, y in at) + BOX[1] // 2
    more = Flow("hub", "one-more")
    assert drawing({(f.sender, f.recipient): f for f in [*star, more]}, NOW) is None
    assert drawing({}, NOW) is None


def test_lines_of_one_agent_begin_apart() -> None:
    """So that each can be followed."""
    found = drawn(*(Flow("hub", f"agent-{n}", rate=1) for n in range(4)))
    begins = {line.path.partition("C")[0] for line in found.lines}

    assert 4 == len(begins)


def test_what_two_files_tell_of_a_flow_is_one() -> None:
    """The larger rate, and the error where one has it."""
    known = merged(Flow("a", "b", rate=2), Flow("a", "b", rate=3, error="refused"))

    assert Flow("a", "b", rate=3, error="refused") == merged(known, Flow("a", "b"))
    assert 7 == merged(known, Flow("a", "b", waits_since=7)).waits_since


@pytest.mark.parametrize(
    ("per_minute", "told"),
    [(0, ""), (0.05, "3.0/h"), (0.5, "30/h"), (1.25, "1.2/min"), (200, "200/min"), (6000, "100/s")],
)
def test_rates_are_told_in_the_unit_that_has_a_number(per_minute: float, told: str) -> None:
    """By the hour, the minute or the second."""
    assert told == words.rate(per_minute)


def test_links_are_rates_of_the_last_hour(tmp_path: Path) -> None:
    """What is older does not count; of very many messages the newest are the measure."""
    clock = ManualClock()
    testing = Controls(clock=clock)
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, testing=testing, hold_unknown=True
    ) as box:
        box.send("old", 0)
        clock.advance(LATELY / 1000 + 60)
        box.send_many([("b", n) for n in range(30)])
        with opened(box.file.path) as reader:
            few = links(reader, clock.now())
        for _ in range(2):
            box.send_many([("c", n) for n in range(SAMPLE // 2)])
            clock.advance(30)
        with opened(box.file.path) as reader:
            many = links(reader, clock.now())

    assert [("b", 0.5, 0.0)] == [(each.peer, each.sent, each.received) for each in few]
    assert [("c", SAMPLE)] == [(each.peer, round(each.sent)) for each in many]


def test_the_topology_shows_what_does_not_arrive(shown: TestClient) -> None:
    """First in the table, red in the drawing; an agent links to what is around it."""
    page = shown.get("/topology").text
    first = re.findall(r"<tr>(.*?)</tr>", page.partition('id="flows"')[2], re.DOTALL)[1]
    around = shown.get("/topology?agent=ledger").text

    assert "warehouse" in first
    assert "connection refused" in first
    assert 1 == page.count('<g class="act"')
    assert "shop" not in re.findall(r'class="name">(\w+)<', around)
    assert ["billing", "ledger"] == sorted(re.findall(r'class="name">(\w+)<', around))
    assert '"/topology?agent=billing"' in shown.get("/agents/billing").text


def test_many_agents_are_a_table(home: Home) -> None:
    """Those that fail first; the page says how to see a drawing."""
    made = app([home.path], clock=home.clock)
    made.state.site.refresher.refresh()
    with Postbox(
        home.path / "shop.db", start=False, testing=Controls(clock=home.clock), hold_unknown=True
    ) as shop:
        shop.send_many([(f"agent-{n:02}", n) for n in range(MOST)])
    made.state.site.refresher.refresh()
    page = TestClient(made, base_url="http://localhost").get("/topology").text
    made.state.site.refresher.stop()

    assert f"More than {MOST} agents are not drawn" in page
    assert '<svg class="topology"' not in page
    assert page.index("connection refused") < page.index("agent-07")


def test_schedules_stand_by_what_a_person_has_to_do(shown: TestClient) -> None:
    """The one that cannot send first, with its error; filters are by state and by name."""
    page = shown.get("/schedules").text
    found = re.findall(r'/schedules/(\w+)">', page)

    assert ["stocktaking", "nightly", "weekly"] == found
    assert "OutboxLimit: 1000000 messages wait" in page
    assert ["weekly"] == re.findall(r'/schedules/(\w+)">', shown.get("/schedules?show=paused").text)
    assert [] == re.findall(r'/schedules/(\w+)">', shown.get("/schedules?q=billing").text)


def test_a_schedule_has_next_past_and_missed_dates(home: Home) -> None:
    """Those that passed without a message are red; what it sent is listed with its state."""
    with Postbox(home.path / "shop.db", start=False, testing=Controls(clock=home.clock)) as shop:
        shop.schedules.add("hourly", every="1h", to="billing", type="note", body={"n": 1})
        home.clock.advance(3601)
        shop.run_until_idle()
    sent_at = home.clock.now()
    home.clock.advance(2 * 3600)
    made = app([home.path], clock=home.clock)
    made.state.site.refresher.refresh()
    client = TestClient(made, base_url="http://localhost")
    page, table = client.get("/agents/shop/schedules/hourly").text, client.get("/schedules").text
    made.state.site.refresher.stop()
    with opened(home.path / "shop.db") as reader:
        one = lists.schedule(reader, "hourly")

    assert one is not None
    assert "late" == one.state(home.clock.now())
    assert 2 == page.count(">missed<")
    assert "Its date passed" in page
    past = page.partition('id="past"')[2]
    assert words.moment(sent_at)[:16] in past
    assert 1 == past.count('class="row"')
    assert table.index("stocktaking") < table.index("hourly") < table.index("nightly")
    assert 404 == client.get("/agents/shop/schedules/none").status_code


def test_channels_have_members_and_mailboxes_have_readers(shown: TestClient) -> None:
    """With the state of a channel, and how far each reader is."""
    page, one = shown.get("/channels").text, shown.get("/channels/news").text

    assert re.search(r"/channels/news.*?>3<", page)
    assert '<span class="badge bad">paused</span>' in page
    assert ["board", "team"] == re.findall(r'<th scope="row">(board|team)</th>', page)
    assert ["billing", "ledger", "shop"] == sorted(
        set(re.findall(r'class="row" href="/agents/(\w+)"', one))
    )
    assert 404 == shown.get("/channels/none").status_code
    paused = shown.get("/channels/repairs").text
    assert "onceward channel resume repairs --agent shop" in paused


def test_the_directory_is_asked_page_by_page(home: Home) -> None:
    """Each list goes on behind a name."""
    with opened_any(home.path / "directory.db") as reader:
        first, second = directory.channels(reader, limit=5)
        rest = directory.channels(reader, after="news", limit=5)
        members = directory.members(reader, "news", limit=5)
        boxes = directory.mailboxes(reader, limit=5)

    assert ("news", "group", "active", 3) == (first.name, first.type, first.state, first.members)
    assert (second,) == rest
    assert ("paused", "hold") == (second.state, second.mode)
    assert [("billing", "member"), ("ledger", "member"), ("shop", "owner")] == [
        (each.agent, each.role) for each in members
    ]
    assert [("tickets", "coder")] == [(each.name, each.owner) for each in boxes]


def test_a_home_without_a_directory_has_empty_lists(tmp_path: Path) -> None:
    """Agents are found without it."""
    with Postbox(tmp_path / "a.db", agent="a", start=False):
        pass
    (tmp_path / "directory.db").unlink()
    made = app([tmp_path])
    made.state.site.refresher.refresh()
    page = TestClient(made, base_url="http://localhost").get("/channels")
    made.state.site.refresher.stop()

    assert 200 == page.status_code
    assert "No channel is here" in page.text


@pytest.mark.parametrize("given", [".", "agents", "agents/a.db"])
def test_the_directory_of_a_folder_agents_is_above_it(tmp_path: Path, given: str) -> None:
    """Its channels are shown, whether the home, that folder or a file of it is inspected."""
    (tmp_path / "agents").mkdir()
    with Postbox(tmp_path / "agents" / "a.db", agent="a", start=False) as box:
        box.channels.create("news")
    made = app([tmp_path / given])
    made.state.site.refresher.refresh()
    page = TestClient(made, base_url="http://localhost").get("/channels")
    made.state.site.refresher.stop()

    assert "/channels/news" in page.text


def test_a_member_that_has_not_received_is_told(home: Home) -> None:
    """How many messages of the channel wait in its file."""
    testing = Controls(clock=home.clock)
    with (
        Postbox(home.path / "shop.db", start=False, testing=testing) as shop,
        Postbox(home.path / "ledger.db", start=False, testing=testing) as ledger,
    ):
        for n in range(3):
            shop.channels.get("news").send({"n": n})
        shop.run_until_idle()
        ledger.run_until_idle()
        made = app([home.path], clock=home.clock)
        made.state.site.refresher.refresh()
        page = TestClient(made, base_url="http://localhost").get("/channels/news").text
        made.state.site.refresher.stop()

    ledgers = page.partition('href="/agents/ledger">')[2]
    assert '<td class="n" data-label="to receive">3</td>' in ledgers.partition("</tr>")[0]
