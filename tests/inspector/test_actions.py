"""Actions: only with leave, only when confirmed by a page of ours, and written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import Field
from starlette.testclient import TestClient

from onceward import Agent, Context, Msg, Postbox, Run
from onceward.errors import InvalidArgument
from onceward.ops.inspector import app
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.inspector.conftest import Home

PATIENCE = 60
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """Return the file of actions."""
    return tmp_path / "audit.jsonl"


@pytest.fixture
def writer(home: Home, audit: Path) -> Iterator[TestClient]:
    """Return a client of an inspector that may change things."""
    made = app([home.path], clock=home.clock, write=True, audit=audit)
    made.state.site.refresher.refresh()
    client = TestClient(made, base_url="http://localhost")
    yield client
    client.close()
    made.state.site.refresher.stop()


def fields(web: TestClient, address: str) -> dict[str, str]:
    """Return the fields of the form that asks whether an action is meant."""
    page = web.get(address)
    assert 200 == page.status_code, page.text
    return dict(FIELD.findall(page.text))


def confirmed(web: TestClient, address: str) -> str:
    """Do an action as a reader does, and return the page that follows."""
    return web.post(address.partition("?")[0], data=fields(web, address)).text


def box(home: Home, agent: str) -> Postbox:
    """Return an agent's postbox without engines."""
    return Postbox(home.path / f"{agent}.db", start=False, testing=Controls(clock=home.clock))


def entries(audit: Path) -> list[dict[str, Any]]:
    """Return what was written down."""
    return [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]


def test_pages_that_only_read_offer_and_take_no_action(web: TestClient) -> None:
    """Neither the question nor the form is answered."""
    assert "/act/" not in web.get("/agents/shop").text
    assert 403 == web.get("/agents/shop/act/pause").status_code
    assert 403 == web.post("/agents/shop/act/pause").status_code


def test_an_action_is_asked_done_and_written_down(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """The page that follows says what became of it; two lines say it for later."""
    page = confirmed(writer, "/agents/billing/act/pause")

    assert "Pause the agent: paused" in page
    with box(home, "billing") as billing:
        assert billing.file.health().paused
    assert [("inspect.pause", "billing", "asked"), ("inspect.pause", "billing")] == [
        (each["op"], each["agent_id"], *([each["outcome"]] * (each["outcome"] == "asked")))
        for each in entries(audit)
    ]
    assert "resumed" in confirmed(writer, "/agents/billing/act/resume")


@pytest.mark.parametrize("theft", ["no cookie", "another form", "another site", "another origin"])
def test_a_forged_form_changes_nothing(
    writer: TestClient, home: Home, audit: Path, theft: str
) -> None:
    """A form needs the mark of its reader, and to come from a page of ours."""
    sent = fields(writer, "/agents/billing/act/pause")
    headers = {
        "another site": {"sec-fetch-site": "cross-site"},
        "another origin": {"origin": "http://evil.example"},
    }.get(theft, {})
    if theft == "no cookie":
        writer.cookies.clear()
    if theft == "another form":
        sent = {"form": "0" * 64}

    assert 403 == writer.post("/agents/billing/act/pause", data=sent, headers=headers).status_code
    with box(home, "billing") as billing:
        assert not billing.file.health().paused
    assert not audit.exists()


def test_a_question_changes_nothing(writer: TestClient, home: Home) -> None:
    """To open the address of an action is to ask."""
    for verb in ("pause", "discard-all"):
        writer.get(f"/agents/billing/act/{verb}")

    with box(home, "billing") as billing:
        assert (False, 3) == (billing.file.health().paused, len(billing.dead_letters.list()))


def test_dead_letters_are_replayed_and_discarded(writer: TestClient, home: Home) -> None:
    """One by its id; the others by what they have in common, which the question counts."""
    one = confirmed(writer, f"/agents/billing/act/replay?id={home.ids['rejected']}")
    asked = writer.get("/agents/billing/act/discard-all?reason=rejected&type=invoice.created").text
    rest = confirmed(writer, "/agents/billing/act/discard-all?reason=rejected&type=invoice.created")

    assert "waits to be sent or handled again" in one
    assert "<dd>2</dd>" in asked
    assert "2 dead letters discarded" in rest
    with box(home, "billing") as billing:
        assert [] == billing.dead_letters.list()


def test_a_dead_letter_is_edited(writer: TestClient, home: Home) -> None:
    """The form takes its new body as JSON or text, and never shows the old one with its secrets."""
    address = f"/agents/billing/act/edit?id={home.ids['rejected']}"
    page = writer.get(f"/agents/billing/messages/{home.ids['rejected']}").text
    sent = fields(writer, address)
    path = address.partition("?")[0]
    missing = writer.post(path, data=sent).text
    told = writer.post(path, data=sent | {"body": '{"cents": 5}'}).text

    assert "act/edit?id=" in page
    assert '<textarea name="body"' in writer.get(address).text
    assert "the corrected body is missing" in missing
    assert "its body is replaced: replay it now" in told
    with box(home, "billing") as billing:
        dead = billing.dead_letters.get(home.ids["rejected"])
        assert dead is not None
        assert ({"cents": 5}, True) == (dead.body, "bodyedits" in dead.headers)


def test_a_filter_keeps_the_others(writer: TestClient, home: Home) -> None:
    """What does not match stays."""
    assert "0 dead letters discarded" in confirmed(
        writer, "/agents/billing/act/discard-all?type=other"
    )
    assert 404 == writer.get("/agents/billing/act/discard-all?topic=%23").status_code
    with box(home, "billing") as billing:
        assert 3 == len(billing.dead_letters.list())


def test_a_message_is_cancelled(writer: TestClient, home: Home) -> None:
    """If it has taken no effect; otherwise the page says that it is too late."""
    assert "Cancel a message: cancelled" in confirmed(
        writer, f"/agents/shop/act/cancel?id={home.ids['late']}"
    )
    assert "too late: it is acked" in confirmed(
        writer, f"/agents/shop/act/cancel?id={home.ids['order']}"
    )
    with box(home, "shop") as shop:
        assert "cancelled" == shop.state(home.ids["late"])


def test_a_request_is_answered(writer: TestClient, home: Home) -> None:
    """A form takes the answer as JSON or text; it is no line of the audit."""
    with box(home, "shop") as shop, box(home, "coder") as coder:
        ticket = shop.request("coder", {"may": "I?"}, type="question")
        shop.run_until_idle()
        address = f"/agents/coder/act/answer?id={ticket.id}"
        page = writer.get(f"/agents/coder/messages/{ticket.id}").text
        form = writer.get(address)
        given = dict(FIELD.findall(form.text)) | {"body": '{"yes": true}'}
        told = writer.post(address.partition("?")[0], data=given).text
        again = writer.post(address.partition("?")[0], data=given).text
        coder.run_until_idle()

        assert "Answer…" in page
        assert '<textarea name="body"' in form.text
        assert "Answer a request: answered by" in told
        assert "not answered" in again
        assert {"yes": True} == shop.result(ticket, reply=dict, timeout=0)


class Colour(StrEnum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Approval(Msg, type="approval"):
    """The answer of a person, with a field of each kind that a form has."""

    by: str = Field(description="your name")
    cents: int
    rate: float | None = None
    ok: bool
    colour: Colour = Colour.RED
    sure: bool | None = None
    day: date | None = None


class Nested(Msg, type="nested"):
    """An answer that a form has one text for."""

    lines: list[int]


def test_the_form_has_a_field_for_each_of_the_expected_answer(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """Each kind has its input; what is filled in is the answer, and no line of the audit."""
    with box(home, "shop") as shop, box(home, "coder") as coder:
        ticket = shop.request("coder", {"may": "I?"}, type="question", reply=Approval)
        shop.run_until_idle()
        address = f"/agents/coder/act/answer?id={ticket.id}"
        form = writer.get(address).text
        given = dict(FIELD.findall(form)) | {
            "field:by": "Ada & Co",
            "field:cents": "7",
            "field:rate": "0.5",
            "field:ok": "on",
            "field:colour": '"blue"',
            "field:sure": "false",
        }
        told = writer.post(address.partition("?")[0], data=given).text
        coder.run_until_idle()
        found = shop.result(ticket, reply=Approval, timeout=0)

    inputs = dict(re.findall(r'<(?:input|select)([^>]*?) name="field:(\w+)"', form))
    names = {name: kind.strip() for kind, name in inputs.items()}
    assert "<textarea" not in form
    assert ["by", "cents"] == re.findall(r'name="field:(\w+)"[^>]* required>', form)
    assert 'type="checkbox"' == names["ok"]
    assert "your name" in form
    assert "Answer a request: answered by" in told
    assert (
        Approval(by="Ada & Co", cents=7, rate=0.5, ok=True, colour=Colour.BLUE, sure=False) == found
    )
    assert "Ada" not in audit.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"field:cents": "7"}, "by: a value is required"),
        ({"field:by": "Ada", "field:cents": "much"}, "cents is &#39;much&#39;, and must be"),
        ({"field:by": "Ada", "field:cents": "7", "field:rate": "nan"}, "rate is &#39;nan&#39;"),
        ({"field:by": "Ada", "field:cents": "7", "field:colour": '"green"'}, "one of"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_on_the_page(
    writer: TestClient, home: Home, given: dict[str, str], told: str
) -> None:
    """It says which field and why; the request waits on."""
    with box(home, "shop") as shop, box(home, "coder") as coder:
        ticket = shop.request("coder", {"may": "I?"}, type="question", reply=Approval)
        shop.run_until_idle()
        address = f"/agents/coder/act/answer?id={ticket.id}"
        sent = fields(writer, address) | given
        page = writer.post(address.partition("?")[0], data=sent).text

        assert "not done: " in page
        assert told in page
        assert coder.receive_one(ticket.id) is not None


@pytest.mark.parametrize("reply", [Nested, dict, None])
def test_an_answer_without_flat_fields_has_one_text(
    writer: TestClient, home: Home, reply: type[object] | None
) -> None:
    """Where the request says nothing of its answer, or more than a form has inputs for."""
    with box(home, "shop") as shop:
        ticket = shop.request("coder", {"may": "I?"}, type="question", reply=reply)
        shop.run_until_idle()

    assert '<textarea name="body"' in writer.get(f"/agents/coder/act/answer?id={ticket.id}").text


def test_a_breaker_is_reset(writer: TestClient, home: Home) -> None:
    """The peer is tried again at once."""
    confirmed(writer, "/agents/shop/act/reset?id=warehouse")

    with box(home, "shop") as shop:
        assert [("warehouse", "closed")] == [
            (each.name, each.breaker) for each in shop.peers.list() if each.name == "warehouse"
        ]


def test_a_session_is_paused_and_its_run_aborted(writer: TestClient, home: Home) -> None:
    """Runs that have ended are not aborted, and the page says so."""
    with box(home, "coder") as coder:
        run = coder.runs.list()[0].id
    assert "session chat is paused" in confirmed(writer, "/agents/coder/act/pause-queue?id=chat")
    assert "not aborted: it was not open" in confirmed(writer, f"/agents/coder/act/abort?id={run}")
    confirmed(writer, "/agents/coder/act/resume-queue?id=chat")
    with box(home, "coder") as coder:
        [queue] = coder.runs.queues()
        assert queue.paused_at is None


def test_an_open_run_is_aborted(writer: TestClient, home: Home) -> None:
    """Its call goes on and is not heard any more; its message waits for the next run."""
    coder, began, go = Agent("coder"), Event(), Event()

    @coder.runs(mode="followup")
    def turn(run: Run) -> str:
        began.set()
        assert go.wait(PATIENCE)
        return "too late"

    with (
        Postbox(
            home.path / "coder.db", agent=coder, start=False, testing=Controls(clock=home.clock)
        ) as worker,
        ThreadPoolExecutor() as pool,
    ):
        message_id = worker.session("chat").send("coder", "build it again")
        call = pool.submit(worker.run_until_idle)
        assert began.wait(PATIENCE)
        [run] = [each.id for each in worker.runs.list() if each.state == "open"]
        page = writer.get("/agents/coder").text
        confirmed(writer, "/agents/coder/act/pause-queue?id=chat")
        [address] = re.findall(
            r'href="(/agents/coder/act/abort[^"]+)"', writer.get("/agents/coder/sessions/chat").text
        )
        told = confirmed(writer, address.replace("&amp;", "&"))
        go.set()
        call.result(PATIENCE)

        assert f"/agents/coder/act/abort?id={run}" in page
        assert "Abort a run: aborted" in told
        assert "<h1>Session chat</h1>" in told
        assert [("aborted", "aborted in the inspector")] == [
            (each.state, each.cause) for each in worker.runs.list() if each.id == run
        ]
        assert [message_id] == [each.id for each in worker.runs.waiting("chat")]
        assert [] == worker.query("SELECT id FROM onceward_outbox WHERE body = 'too late'")


def test_a_schedule_is_paused(writer: TestClient, home: Home) -> None:
    """And resumed; an unknown one is refused; one that is paused fails no more."""
    assert "schedule failing" in writer.get("/").text
    confirmed(writer, "/agents/shop/act/pause-schedule?id=stocktaking")
    assert "schedule failing" not in writer.get("/").text
    assert "paused: it sends no messages" in confirmed(
        writer, "/agents/shop/act/pause-schedule?id=nightly"
    )
    with box(home, "shop") as shop:
        assert shop.schedules.list()[0].paused_at is not None
    assert "schedule: resumed" in confirmed(writer, "/agents/shop/act/resume-schedule?id=nightly")
    assert "nothing changed" in confirmed(writer, "/agents/shop/act/pause-schedule?id=none")


def test_an_action_that_fails_says_why(writer: TestClient, home: Home, audit: Path) -> None:
    """The error stands on the page and in the file."""
    page = confirmed(writer, "/agents/billing/act/replay?id=none")

    assert 404 == writer.get("/agents/billing/act/nothing").status_code
    assert "not done" in entries(audit)[-1]["outcome"]
    assert page


def test_actions_need_a_file_to_be_written_to(home: Home) -> None:
    """Without one no inspector with actions is made."""
    with pytest.raises(InvalidArgument, match="audit=FILE"):
        app([home.path], write=True)


def problem_of(web: TestClient, error: str) -> str:
    """Return the address of the problem whose error begins so."""
    page = web.get("/problems").text
    found = re.search(rf'href="(/problems/[0-9a-f]+)">{re.escape(error)}', page)
    assert found is not None, page
    return found[1]


def repaired(web: TestClient, address: str, verb: str, **more: str) -> Any:
    """Repair a problem as a reader does; return the answer."""
    return web.post(f"{address}/{verb}", data=fields(web, address) | more)


def test_a_problem_is_repaired_in_all_its_agents(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """All dead letters of one error are replayed; the list forgets them, two lines say so."""
    address = problem_of(writer, "rejected: negative amount")

    told = repaired(writer, address, "replay").text

    assert "Replay: 3 of 3" in told
    assert "negative amount" not in writer.get("/problems").text
    assert 404 == writer.get(address).status_code
    with box(home, "billing") as billing:
        assert [] == billing.dead_letters.list()
    assert [("inspect.replay", "billing", "asked"), ("inspect.replay", "billing", "Replay: 3")] == [
        (each["op"], each["agent_id"], each["outcome"]) for each in entries(audit)
    ]


def test_discarding_a_problem_needs_a_tick(writer: TestClient, home: Home) -> None:
    """Without it nothing is discarded, whatever the form says."""
    address = problem_of(writer, "rejected: negative amount")

    refused = repaired(writer, address, "discard")
    with box(home, "billing") as billing:
        assert 3 == len(billing.dead_letters.list())
    done = repaired(writer, address, "discard", sure="yes")

    assert 403 == refused.status_code
    assert "Discard: 3 of 3" in done.text
    with box(home, "billing") as billing:
        assert [] == billing.dead_letters.list()


@pytest.mark.parametrize(
    ("error", "verb", "told"),
    [
        ("warehouse: Unreachable", "reset", "Try again now: 1 of 1"),
        ("stocktaking: OutboxLimit", "pause-schedule", "Pause the schedule: 1 of 1"),
    ],
)
def test_each_kind_of_problem_has_its_repair(
    writer: TestClient, error: str, verb: str, told: str
) -> None:
    """A breaker is reset, a schedule is paused; the problem is gone then."""
    address = problem_of(writer, error)

    assert told in repaired(writer, address, verb).text
    assert error not in writer.get("/problems").text


def test_a_paused_agent_is_a_problem_until_it_is_resumed(writer: TestClient, home: Home) -> None:
    """Its repair resumes it."""
    confirmed(writer, "/agents/ledger/act/pause")
    address = problem_of(writer, "it handles and sends no message")

    assert "Resume: 1 of 1" in repaired(writer, address, "resume").text
    with box(home, "ledger") as ledger:
        assert not ledger.file.health().paused


def test_a_repair_needs_leave_and_a_form_of_ours(
    web: TestClient, writer: TestClient, home: Home
) -> None:
    """A page that only reads shows the problem and takes no repair; nor does a forged form."""
    address = problem_of(web, "rejected: negative amount")

    assert "<form" not in web.get(address).text.partition("<main")[2]
    assert 403 == web.post(f"{address}/replay").status_code
    assert 403 == writer.post(f"{address}/replay", data={"form": "0" * 64}).status_code
    assert 404 == repaired(writer, address, "reset").status_code
    with box(home, "billing") as billing:
        assert 3 == len(billing.dead_letters.list())


def test_files_that_fail_do_not_keep_others_from_a_repair(
    writer: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says how many were mended, and why the first of the others was not."""
    for name in ("ledger", "mailer"):
        confirmed(writer, f"/agents/{name}/act/pause")
    address = problem_of(writer, "it handles and sends no message")
    opened = Postbox.__init__

    def opening(self: Postbox, path: Any, **options: Any) -> None:
        if Path(path).stem == "ledger":
            msg = "ledger is broken"
            raise InvalidArgument(msg)
        opened(self, path, **options)

    monkeypatch.setattr(Postbox, "__init__", opening)

    told = repaired(writer, address, "resume").text

    assert "Resume: 1 of 2; not done in 1 agents, first ledger: ledger is broken" in told


def test_a_schedule_is_run_now(writer: TestClient, home: Home) -> None:
    """Its message is sent beside its dates; the page of the schedule says so."""
    page = confirmed(writer, "/agents/shop/act/run-schedule?id=nightly")

    assert "<h1>Schedule nightly</h1>" in page
    assert re.search(r"message [0-9a-f-]{36} is sent in addition to its dates", page)
    with box(home, "shop") as shop:
        found = shop.schedules.get("nightly")
        assert found is not None
        assert found.last_id is not None
        assert found.last_id in page


def test_a_schedule_is_added_and_edited_in_a_form(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """The outcome names the next five dates; a mistake is told and changes nothing."""
    new, edit = "/agents/shop/act/add-schedule", "/agents/shop/act/edit-schedule?id=monthly"
    form = fields(writer, new) | {"field:name": "monthly", "field:cron": "0 3 1 * *"}
    zone = {"field:timezone": "Europe/Zurich", "field:body": '{"n": 1}', "field:type": "report"}
    added = writer.post(new, data=form | zone).text
    twice = writer.post(new, data=form | {"field:cron": "0 3 99 * *"}).text
    unread = writer.post(new, data=form | zone | {"field:body": "{n: 1}"}).text
    shown = writer.get(edit).text
    changed = {"field:cron": "30 4 1 * *", "field:timezone": "Europe/Zurich"}
    edited = writer.post(edit.partition("?")[0], data=fields(writer, edit) | changed).text

    assert "Add a schedule: added; its next dates: " in added
    assert 5 == added.partition("its next dates: ")[2].partition("<")[0].count("03:00:00+0")
    assert "not done: cron" in twice
    assert "not done: the body looks like JSON, but is not valid" in unread
    assert 'value="0 3 1 * *"' in shown
    assert "Edit a schedule: changed; its next dates: " in edited
    assert "<h1>Schedule monthly</h1>" in edited
    assert "04:30 +0" in edited
    assert ["inspect.add-schedule", "inspect.edit-schedule"] == sorted(
        {each["op"] for each in entries(audit)}
    )
    with box(home, "shop") as shop:
        found = shop.schedules.get("monthly")
        assert found is not None
        assert ("30 4 1 * *", "Europe/Zurich") == (found.cron, found.timezone)
        assert '{"n": 1}' == shop.query(
            "SELECT body FROM onceward_schedules WHERE name = 'monthly'"
        )[0][0].replace(":1", ": 1")


def test_a_form_whose_choices_are_left_empty_adds_a_schedule(
    writer: TestClient, home: Home
) -> None:
    """A browser sends empty fields, too; without a name nothing is added, and the page says so."""
    new = "/agents/shop/act/add-schedule"
    names = ("name", "cron", "every", "timezone", "to", "type", "body", "missed", "overlap")
    form = fields(writer, new) | {f"field:{name}": "" for name in names}
    unnamed = writer.post(new, data=form | {"field:every": "1h"}).text
    added = writer.post(new, data=form | {"field:name": "hourly", "field:every": "1h"}).text
    with box(home, "shop") as shop:
        found = shop.schedules.get("hourly")

    assert "not done: name: a value is required" in unnamed
    assert "Add a schedule: added; its next dates: " in added
    assert found is not None
    assert ("one", "queue", "shop") == (found.missed, found.overlap, found.recipient)


def test_a_handler_is_limited_and_a_type_paused_in_forms(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """The page of the agent lists both, with what can be changed; a mistake changes nothing."""
    new, pause = "/agents/shop/act/limit-handler", "/agents/shop/act/pause-type"
    edit = "/agents/shop/act/edit-limit?id=report"
    form = fields(writer, new) | {"field:handler": "report", "field:rate": "10/s"}
    added = writer.post(new, data=form).text
    wrong = writer.post(new, data=form | {"field:concurrency": "two"}).text
    shown = writer.get(edit).text
    edited = writer.post(
        edit.partition("?")[0], data=fields(writer, edit) | {"field:concurrency": "2"}
    ).text
    paused = writer.post(pause, data=fields(writer, pause) | {"field:type": "order.*"}).text
    with box(home, "shop") as shop:
        rows = [
            (each.name, each.rate, each.concurrency, each.paused_at is not None)
            for each in shop.limits.list()
            if each.scope == "handler"
        ]
    confirmed(writer, "/agents/shop/act/unlimit-handler?id=report")
    resumed = confirmed(writer, "/agents/shop/act/resume-type?id=order.*")

    assert "report: workers follow it" in added
    assert "not done: concurrency" in wrong
    assert 'value="10/s"' in shown
    assert "10/s, 2 at once" in edited
    assert "order.* is paused: its messages wait" in paused
    assert [("order.*", None, None, True), ("report", 10.0, 2, False)] == rows
    assert "order.* is resumed" in resumed
    assert "Limits of handlers" not in resumed
    assert "inspect.limit-handler" in {each["op"] for each in entries(audit)}


def test_a_group_shows_how_many_of_its_messages_have_ended(web: TestClient, home: Home) -> None:
    """On the page of its agent, and on its own, which leads to its messages."""
    with box(home, "shop") as shop:
        with shop.groups.begin(then="billing", data={"n": 1}) as group:
            ids = [group.send("ledger", {"n": n}, type="part") for n in range(3)]
        [found] = shop.groups.list(1)
    listed = web.get("/agents/shop").text
    page = web.get(f"/agents/shop/groups/{found.id}").text

    assert f"/agents/shop/groups/{found.id}" in listed
    assert "onceward.group_done to" in listed
    assert "<dt>waiting</dt><dd>3</dd>" in page
    assert all(f"/agents/shop/messages/{each}" in page for each in ids)
    assert 404 == web.get("/agents/shop/groups/none").status_code


def test_only_a_writer_gets_the_form(writer: TestClient, web: TestClient) -> None:
    """The page of a schedule offers it with --write only."""
    assert "edit-schedule?id=nightly" in writer.get("/agents/shop/schedules/nightly").text
    assert "edit-schedule" not in web.get("/agents/shop/schedules/nightly").text


def test_a_question_of_a_session_is_answered_from_its_page(writer: TestClient, home: Home) -> None:
    """The page of the session leads to the form; the answer calls the handler again."""
    asker, told = Agent("asker"), list[str]()

    @asker.on("job")
    def job(_: int, ctx: Context) -> None:
        told.append(ctx.ask("mailer", "may I?", type="question", reply=str))

    testing = Controls(clock=home.clock)
    with Postbox(home.path / "asker.db", agent=asker, start=False, testing=testing) as made:
        made.session("trip").send("asker", 1, type="job")
        made.run_until_idle()
        with box(home, "mailer") as mailer:
            mailer.run_until_idle()
        writer.app.state.site.refresher.refresh()  # type: ignore[attr-defined]
        page = writer.get("/agents/asker/sessions/trip").text
        [answer] = re.findall(r'href="(/agents/mailer/act/answer\?id=[^"]+)"', page)
        address = answer.partition("?")[0]
        writer.post(address, data=fields(writer, answer) | {"body": "you may"})
        with box(home, "mailer") as mailer:
            mailer.run_until_idle()
        made.run_until_idle()

    assert "for an answer of" in page
    assert ["you may"] == told


def undone(web: TestClient, told: Any) -> str:
    """Press the button beside an outcome; return the page that follows."""
    [name] = re.findall(r'action="(/undo/[^"]+)"', told.text)
    [form] = re.findall(
        rf'action="{re.escape(name)}"><input type="hidden" name="form" value="(\w+)"', told.text
    )
    return web.post(name, data={"form": form}).text


def test_a_replay_is_undone_while_the_messages_wait(writer: TestClient, home: Home) -> None:
    """They end as cancelled; the button does so once."""
    address = problem_of(writer, "rejected: negative amount")
    told = repaired(writer, address, "replay")
    with box(home, "billing") as billing:
        ids = [each for (each,) in billing.query(
            "SELECT id FROM onceward_inbox WHERE state = 'pending' AND body LIKE '%-5%'"
        )]  # fmt: skip

    assert "Undo: Cancel: 3 of 3" in undone(writer, told)
    with box(home, "billing") as billing:
        assert ["cancelled"] * 3 == [
            str(state) for each in ids
            for (state,) in billing.query("SELECT state FROM onceward_inbox WHERE id = ?", (each,))
        ]  # fmt: skip
        assert [] == billing.dead_letters.list()
    [name] = re.findall(r'action="(/undo/[^"]+)"', told.text)
    [form] = re.findall(r'name="form" value="(\w+)"', told.text)[:1]
    assert 404 == writer.post(name, data={"form": form}).status_code


def test_a_pause_is_undone_and_a_discard_says_that_it_is_not(
    writer: TestClient, home: Home
) -> None:
    """The question tells which of the two an action is."""
    sent = fields(writer, "/agents/billing/act/pause")
    told = writer.post("/agents/billing/act/pause", data=sent)

    assert "Undo: Resume: 1 of 1" in undone(writer, told)
    with box(home, "billing") as billing:
        assert not billing.file.health().paused
    assert "There is no undo." in writer.get(
        f"/agents/billing/act/discard?id={home.ids['rejected']}"
    ).text  # fmt: skip
    assert "Undo resumes it." in writer.get("/agents/billing/act/pause").text


def test_an_undo_needs_a_form_of_ours(writer: TestClient, home: Home) -> None:
    """Another page cannot press the button."""
    sent = fields(writer, "/agents/billing/act/pause")
    told = writer.post("/agents/billing/act/pause", data=sent)
    [name] = re.findall(r'action="(/undo/[^"]+)"', told.text)

    assert 403 == writer.post(name, data={"form": "0" * 64}).status_code
    with box(home, "billing") as billing:
        assert billing.file.health().paused


def test_selected_messages_are_changed_together(
    writer: TestClient, home: Home, audit: Path
) -> None:
    """The question names each; what could not be done keeps no other from it."""
    with box(home, "billing") as billing:
        ids = [each.id for each in billing.dead_letters.list()]
    wanted = f"/agents/billing/act/replay?id={ids[0]}&id={ids[1]}&id=none"
    page = writer.get(wanted)
    sent = [("id", each) for each in (*ids[:2], "none")]
    [form] = re.findall(r'name="form" value="(\w+)"', page.text)
    told = writer.post(
        "/agents/billing/act/replay", data={"form": form, "id": [each for _, each in sent]}
    )

    assert "Replay 3 messages?" in page.text
    assert all(each in page.text for each in ids[:2])
    assert "Replay a dead letter: 2 of 3; " in told.text
    assert [*ids[:2], "none"] == entries(audit)[0]["id"]
    with box(home, "billing") as billing:
        assert 1 == len(billing.dead_letters.list())


def test_an_action_needs_a_selection_of_bounded_size(writer: TestClient) -> None:
    """None, more than one where only one is meant, and very many are refused."""
    many = "&".join(f"id={n}" for n in range(201))

    for asked in ("replay", f"replay?{many}", "reset?id=a&id=b"):
        assert 404 == writer.get(f"/agents/billing/act/{asked}").status_code


def test_a_problem_is_silenced_until_a_moment(writer: TestClient, home: Home, audit: Path) -> None:
    """It is counted no more and listed apart, with the reason, until then or until it is undone."""
    address = problem_of(writer, "rejected: negative amount")
    told = repaired(writer, address, "silence", **{"for": "1h", "reason": "known: bank holiday"})
    page = writer.get("/problems").text
    now = writer.get("/").text

    assert "Silenced for 1h" in told.text
    assert "known: bank holiday" in page.partition("Silenced</h2>")[2]
    assert "negative amount" not in page.partition("Silenced</h2>")[0]
    assert "1 problem is silenced" in now
    assert "inspect.silence" == entries(audit)[-1]["op"]
    home.clock.advance(3601)
    assert "Silenced</h2>" not in writer.get("/problems").text


def test_a_silence_is_ended(writer: TestClient) -> None:
    """The problem is one again."""
    address = problem_of(writer, "rejected: negative amount")
    repaired(writer, address, "silence", **{"for": "1d"})
    told = repaired(writer, address, "silence", end="yes")

    assert "The silence is ended" in told.text
    assert "Silenced</h2>" not in writer.get("/problems").text


def test_a_silence_has_a_span_and_a_form_of_ours(web: TestClient, writer: TestClient) -> None:
    """Other spans are refused, as is a page that only reads."""
    address = problem_of(writer, "rejected: negative amount")

    assert 400 == repaired(writer, address, "silence", **{"for": "1000y"}).status_code
    assert 403 == writer.post(f"{address}/silence", data={"for": "1d"}).status_code
    assert 403 == web.post(f"{address}/silence", data={"for": "1d"}).status_code


def test_a_blocked_lane_goes_on_when_its_head_is_cancelled(writer: TestClient, home: Home) -> None:
    """A message that failed three times is a problem for a person, whose repair needs a tick."""
    address = problem_of(writer, "the bank answered 503")

    assert "the bank answered 503" in writer.get("/").text
    assert 403 == repaired(writer, address, "cancel").status_code
    assert "Cancel: 1 of 1" in repaired(writer, address, "cancel", sure="yes").text
    with box(home, "billing") as billing:
        assert [("cancelled",)] == list(
            billing.query("SELECT state FROM onceward_inbox WHERE id = ?", (home.ids["failing"],))
        )


def test_the_page_of_a_problem_previews_its_messages(writer: TestClient, home: Home) -> None:
    """The oldest ones, by agent; the meaning of each repair and whether it has an undo."""
    page = writer.get(problem_of(writer, "rejected: negative amount")).text

    assert f"/messages/{home.ids['rejected']}" in page
    assert "Undo cancels those that still wait" in page
    assert "It is deleted and cannot be replayed. There is no undo." in page
