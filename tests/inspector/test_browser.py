"""
The pages in a real browser: readable by all, live, and usable by keys alone.

Needs Playwright's client (the extra ``browser-test``) and a Chromium of the system. With
ONCEWARD_SCREENSHOTS=1 the pictures of the documentation are written again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward import Postbox
from onceward.fleet import Rules, reconcile
from onceward.ops.inspector import Reader, app, inspector
from onceward.ops.views.failures import fingerprint
from onceward.serving import ServerThread, bound, configured
from onceward.testing import Controls

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page
    from tests.inspector.conftest import Home

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install 'onceward[browser-test]' runs these in a browser"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium runs these")

playwright.expect.set_options(timeout=60_000)  # a busy machine draws a page in seconds
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
PICTURES = Path(__file__).parents[2] / "docs" / "how-to" / "inspector"
PAGES = {
    "agents": "/",
    "agent": "/agents/billing",
    "limits": "/agents/shop",
    "runs": "/agents/coder",
    "messages": "/agents/shop/messages",
    "dead-letters": "/agents/billing/messages?box=dead",
    "message": "/agents/shop/messages/{order}",
    "failing": "/agents/shop/messages/{failing}",
    "conversation": "/agents/shop/conversations/{order}",
    "dead": "/dead",
    "problems": "/problems",
    "session": "/agents/coder/sessions/chat",
    "topology": "/topology",
    "schedules": "/schedules",
    "schedule": "/agents/shop/schedules/nightly",
    "channels": "/channels",
    "channel": "/channels/news",
    "search": "/search?q=sku",
    "search-agents": "/search?q=bil",
    "report": "/report",
    "filtered": "/agents/shop/messages?q=type:mail.*+since:1d",
    "wrong-filter": "/agents/shop/messages?q=typ:mail",
    "problem": "/problems/{problem}",
    "missing": "/agents/none",
    "question": "/agents/billing/act/discard-all?reason=rejected",
}
SHOTS = {
    "agents": (1120, "light"), "agent": (1120, "light"), "message": (1120, "light"),
    "failing": (1120, "dark"), "conversation": (1120, "light"), "messages": (1120, "light"),
    "dead": (1120, "light"), "dead-letters": (1120, "dark"), "agents-narrow": (400, "dark"),
    "search": (1120, "light"), "problems": (1120, "light"), "session": (1120, "light"),
    "topology": (1120, "light"), "schedules": (1120, "light"), "schedule": (1120, "dark"),
    "channels": (1120, "light"), "report": (1120, "light"), "problem": (1120, "light"),
}  # fmt: skip
"""Pictures of the documentation, with their width and colours."""
PLACE = """folder => document.querySelectorAll(".facts code, .head code").forEach((each) =>
    each.textContent = each.textContent.replace(folder, "/srv/agents")
        .replace(/^.*\\/still\\d*\\//, "/srv/"))"""
"""Shows other folders than those of the test."""
TALLEST = 860
"""Pixels of a picture."""
MOST = 170_000
"""Bytes of a picture."""

RECORD = """
window.labels = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
  const at = this.getTransform().transformPoint(new DOMPoint(x, y));
  const wide = this.measureText(text).width;
  const before = { left: 0, start: 0, center: wide / 2, right: wide, end: wide };
  const left = at.x - before[this.textAlign];
  labels.push([text, left, left + wide - this.canvas.width]);
  return fill.call(this, text, x, y, ...more);
};
"""
"""Notes each text that is drawn, where it begins, and how far it ends outside of its canvas."""
TOKEN = "a-token-of-twenty-two"  # noqa: S105 - of this test

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the browser."""
    with playwright.sync_playwright() as playing:
        started = playing.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def served(
    home: Home, audit: Path, token: str | None = None, report: Path | None = None
) -> Iterator[str]:
    """Serve a home with actions, and yield its address."""
    made = app(
        [home.path], clock=home.clock, write=True, audit=audit, token=token, report_at=report
    )
    made.state.site.refresher.refresh()
    listening = bound("127.0.0.1", 0)
    with closing(ServerThread(configured(made), listening, "onceward-inspector-http")):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        made.state.streams.stop()


@pytest.fixture(scope="module")
def still(made: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a home in which nothing happens."""
    folder = tmp_path_factory.mktemp("still")
    reconcile(made.path, out=folder / "report", rules=Rules(now=made.clock.now()))
    report = folder / "report" / "report.html"
    with served(made, folder / "audit.jsonl", report=report) as address:
        yield address


@pytest.fixture
def moving(home: Home, tmp_path: Path) -> Iterator[str]:
    """Return the address of a home of the test's own."""
    with served(home, tmp_path / "audit.jsonl") as address:
        yield address


@pytest.fixture
def mounted(home: Home, tmp_path: Path) -> Iterator[str]:
    """Return the address of the pages under a path of another application."""
    ann = Reader("ann", write=True)
    pages = inspector(home.path, allow=lambda _: ann, audit=tmp_path / "audit.jsonl")
    made = Starlette(routes=[Mount("/ops/mail", pages)])
    listening = bound("127.0.0.1", 0)
    with closing(ServerThread(configured(made), listening, "onceward-inspector-http")):
        pages._made.state.site.refresher.refresh()  # type: ignore[attr-defined]
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/ops/mail"
    pages._made.state.site.refresher.stop()  # type: ignore[attr-defined]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a call that opens a page; it fails if the browser complains of anything."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def opened(address: str, *, width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("console", lambda said: _note(complaints, said))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [] == complaints


def _note(complaints: list[str], said: Any) -> None:
    if said.type in {"error", "warning"} and "404 (Not Found)" not in said.text:
        complaints.append(f"{said.type}: {said.text}")


def address_of(name: str, home: Home) -> str:
    """Return the address of a page."""
    problem = fingerprint("dead letter", "invoice.created", "rejected: negative amount")
    return PAGES[name].format(**home.ids, problem=problem)


def settled(page: Page) -> None:
    """Wait until the charts of a page are drawn."""
    for plot in page.locator(".plot").all():
        playwright.expect(plot.locator("canvas")).to_be_visible()


@pytest.mark.parametrize("look", [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_by_all(
    open_page: Open, still: str, made: Home, name: str, look: tuple[int, str]
) -> None:
    """No violation that axe knows, nothing wider than the screen, no complaint."""
    width, scheme = look
    page = open_page(still + address_of(name, made), width=width, color_scheme=scheme)
    settled(page)
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")

    assert [] == [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in found["violations"]
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_page_works_under_a_path(mounted: str, open_page: Open, home: Home) -> None:
    """With its style, its charts and its links; the browser complains of nothing."""
    page = open_page(mounted + PAGES["agents"])
    for name in PAGES:
        page.goto(mounted + address_of(name, home))
        settled(page)
        assert "sticky" == page.evaluate(
            "getComputedStyle(document.querySelector('.top')).position"
        )
        if page.locator("#live").is_visible():
            playwright.expect(page.locator("#live")).to_have_text("live")
    page.locator("nav a", has_text="Problems").click()
    assert page.url == f"{mounted}/problems"


def test_a_page_under_a_path_follows_the_file(mounted: str, open_page: Open, home: Home) -> None:
    """Also after its stream of events has ended, as it does every few seconds."""
    page = open_page(f"{mounted}/agents/mailer")
    waiting = page.locator(".tiles div", has_text=re.compile("^to handle")).locator("dd")
    playwright.expect(page.locator("#live")).to_have_text("live")
    before = int(waiting.inner_text())
    with page.expect_event(
        "requestfinished", lambda request: "/ops/mail/events" in request.url, timeout=20_000
    ):
        pass
    _send(home, 2)

    playwright.expect(waiting).to_have_text(str(before + 2))


def test_a_page_follows_the_file(moving: str, open_page: Open, home: Home) -> None:
    """A message that is sent appears without a reload, and nothing else of the page moves."""
    page = open_page(f"{moving}/agents/mailer")
    waiting = page.locator(".tiles div", has_text=re.compile("^to handle")).locator("dd")
    before = int(waiting.inner_text())
    page.evaluate("document.body.dataset.mark = 'same page'")
    _send(home, 2)

    playwright.expect(waiting).to_have_text(str(before + 2))
    assert "same page" == page.evaluate("document.body.dataset.mark")


def test_what_a_reader_opened_stays_open(moving: str, open_page: Open, home: Home) -> None:
    """A refresh of a conversation leaves its table open."""
    page = open_page(f"{moving}/agents/shop/conversations/{home.ids['order']}")
    playwright.expect(page.locator("#live")).to_have_text("live")
    page.locator("summary").click()
    page.evaluate("new Promise((done) => { document.body.addEventListener('htmx:after:swap', done,"
                  " { once: true }); document.getElementById('page').dispatchEvent("
                  "new CustomEvent('refresh')); })")  # fmt: skip

    assert page.locator("details table").is_visible()


@pytest.mark.parametrize("most", [3, 12_000, 1_000_000])
def test_labels_of_an_axis_are_whole(browser: Browser, still: str, most: int) -> None:
    """However large the numbers are, none begins or ends outside of the chart."""
    page = browser.new_page(viewport={"width": 500, "height": 600})
    times = [1_767_225_600 + 180 * n for n in range(21)]
    answer = {"times": times, "span": 180, "series": [[0, most] + [0] * 19] * 3}
    page.add_init_script(RECORD)
    page.route("**/rates.json*", lambda route: route.fulfill(json=answer))
    page.goto(still)
    settled(page)
    labels = page.evaluate("labels")
    page.close()

    assert any(
        text.replace(",", "").isdigit() and int(text.replace(",", "")) * 3 > most
        for text, _, _ in labels
    )
    assert [] == [each for each in labels if each[1] < 0 or each[2] > 0]


def test_a_chart_tells_the_values_under_the_pointer(open_page: Open, still: str) -> None:
    """Those of the span below it, beside the names; they go with the pointer."""
    page = open_page(f"{still}/agents/shop")
    settled(page)
    page.locator(".values summary").click()
    rows = page.locator(".values tbody tr").all_inner_texts()
    newest = [int(each) for each in rows[0].split()[-3:]]
    box = page.locator(".plot .u-over").bounding_box()
    assert box is not None
    values = page.locator("figcaption .key b")
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 40)

    playwright.expect(page.locator("figcaption .at")).to_have_text(f"at {rows[0].split()[1]}")
    assert newest == [int(each) for each in values.all_inner_texts()]
    page.mouse.move(5, 5)
    playwright.expect(values.first).to_have_text("")


def test_a_part_of_a_chart_is_shown_by_a_drag(open_page: Open, still: str) -> None:
    """The button brings the whole range back; other ranges are links."""
    page = open_page(f"{still}/agents/shop")
    settled(page)
    whole = page.get_by_role("button", name="Whole hour")
    box = page.locator(".plot .u-over").bounding_box()
    assert box is not None
    playwright.expect(whole).to_be_hidden()
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 40, steps=4)
    page.mouse.up()

    playwright.expect(whole).to_be_visible()
    whole.click()
    playwright.expect(whole).to_be_hidden()
    page.get_by_role("link", name="week", exact=True).click()
    settled(page)
    assert "range=week" in page.url


def test_a_paused_page_stands_still(moving: str, open_page: Open, home: Home) -> None:
    """Also after other commits; it catches up when it is live again."""
    page = open_page(f"{moving}/agents/mailer")
    button = page.locator("#live")
    playwright.expect(button).to_have_text("live")
    waiting = page.locator(".tiles div", has_text=re.compile("^to handle")).locator("dd")
    before = int(waiting.inner_text())
    page.keyboard.press("p")
    playwright.expect(button).to_have_text("paused")
    _send(home, 1)
    other = open_page(f"{moving}/agents/mailer")
    assert str(before + 1) == other.locator(".tiles dd").nth(1).inner_text()

    assert str(before) == waiting.inner_text()
    button.click()
    playwright.expect(waiting).to_have_text(str(before + 1))


def _send(home: Home, count: int) -> None:
    with Postbox(home.path / "shop.db", start=False, testing=Controls(clock=home.clock)) as shop:
        for n in range(count):
            shop.session("fresh").send("mailer", {"n": n}, type="mail.wanted")
        shop.run_until_idle()


def test_keys_alone_reach_everything(open_page: Open, still: str) -> None:
    """``/`` goes to the search, ``j`` and ``k`` through the rows, Enter opens."""
    page = open_page(f"{still}/")
    page.keyboard.press("/")
    playwright.expect(page.locator("#search")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    playwright.expect(page.locator("main a.row", has_text="shop")).to_be_focused()
    for key in "jjk":
        page.keyboard.press(key)
    playwright.expect(page.locator("main a.row", has_text="billing")).to_be_focused()
    page.keyboard.press("Enter")

    playwright.expect(page.get_by_role("heading", name="billing", level=1)).to_be_visible()


def test_the_skip_link_is_the_first_stop(open_page: Open, still: str) -> None:
    """It leads past the navigation."""
    page = open_page(f"{still}/")
    page.keyboard.press("Tab")

    playwright.expect(page.get_by_role("link", name="Skip to content")).to_be_focused()


def test_evil_bodies_are_text(open_page: Open, still: str, made: Home) -> None:
    """What looks like a script is read, not run; the browser would complain."""
    page = open_page(f"{still}/agents/shop/messages/{made.ids['order']}")

    playwright.expect(page.locator("pre")).to_contain_text("<script>alert('body')</script>")
    assert 0 == page.locator("pre img").count()


def test_a_dead_letter_is_replayed_by_hand(moving: str, open_page: Open, home: Home) -> None:
    """From its page: the question, the answer, and what became of it."""
    page = open_page(f"{moving}/agents/billing/messages/{home.ids['rejected']}")
    page.get_by_role("link", name="Replay…").click()
    page.get_by_role("button", name="Replay a dead letter").click()

    playwright.expect(page.get_by_role("status")).to_contain_text("waits to be sent or handled")
    with Postbox(
        home.path / "billing.db", start=False, testing=Controls(clock=home.clock)
    ) as billing:
        assert 2 == len(billing.dead_letters.list())


TROUBLES = {
    "dead letters": ("rejected: negative amount", ["Replay 3"], "Replay: 3 of 3"),
    "an open breaker": ("warehouse: Unreachable", ["Try again now"], "Try again now: 1 of 1"),
    "a failing schedule": ("stocktaking: OutboxLimit", ["Pause the schedule"], "schedule: 1 of 1"),
    "a blocked lane": ("the bank answered 503", ["tick", "Cancel 1"], "Cancel: 1 of 1"),
    "a paused agent": ("it handles and sends no message", ["Resume"], "Resume: 1 of 1"),
}
"""Kinds of trouble: the problem, the presses on its page, and what is told of it then."""
MOST_CLICKS = 3


@pytest.mark.parametrize("kind", TROUBLES)
def test_trouble_is_over_in_three_clicks(
    request: pytest.FixtureRequest, open_page: Open, home: Home, kind: str
) -> None:
    """From the first page, where it is red, to the list that says that it is done."""
    error, presses, told = TROUBLES[kind]
    if kind == "a paused agent":  # before the inspector reads the files
        with Postbox(home.path / "ledger.db", start=False) as ledger:
            ledger.file.pause()
    moving = request.getfixturevalue("moving")
    page = open_page(moving)
    page.locator(".cards .act").get_by_role("link", name=error).click()
    for press in presses:
        if press == "tick":
            page.locator("form", has=page.get_by_role("button", name="Cancel")).get_by_role(
                "checkbox"
            ).check()
        else:
            page.get_by_role("button", name=press).click()

    assert 1 + len(presses) <= MOST_CLICKS
    playwright.expect(page.get_by_role("status")).to_contain_text(told)
    page.goto(moving)
    playwright.expect(page.get_by_role("link", name=error)).to_have_count(0)


def test_a_replay_is_taken_back(moving: str, open_page: Open) -> None:
    """The outcome has a button beside it, as long as the messages wait."""
    page = open_page(moving)
    page.get_by_role("link", name="rejected: negative amount").click()
    page.get_by_role("button", name="Replay 3").click()
    page.get_by_role("button", name="Undo").click()

    playwright.expect(page.get_by_role("status")).to_contain_text("Undo: Cancel: 3 of 3")


def test_messages_are_selected_by_keys(moving: str, open_page: Open, home: Home) -> None:
    """``x`` selects the row; the bar counts them and asks before it acts."""
    page = open_page(f"{moving}/agents/billing/messages?box=dead")
    playwright.expect(page.locator("#chosen")).to_contain_text("0 selected")
    for key in "jxjx":
        page.keyboard.press(key)
    playwright.expect(page.locator("#chosen")).to_contain_text("2 selected")
    page.locator("#chosen").get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Replay 2").click()

    playwright.expect(page.get_by_role("status")).to_contain_text("2 of 2")
    with Postbox(
        home.path / "billing.db", start=False, testing=Controls(clock=home.clock)
    ) as billing:
        assert 1 == len(billing.dead_letters.list())


def test_a_message_opens_beside_its_list(open_page: Open, still: str) -> None:
    """Enter opens the drawer, ``j`` goes on in it, Enter opens the page, Esc closes it."""
    page = open_page(f"{still}/agents/billing/messages?box=dead")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("complementary", name="Message")
    rows = page.locator("main a.row")
    first, second = (rows.nth(n).get_attribute("href") for n in (0, 1))
    assert first is not None
    assert second is not None
    playwright.expect(drawer).to_contain_text(first.rpartition("/")[2])
    page.evaluate(AXE)
    assert [] == [each["id"] for each in page.evaluate("axe.run()")["violations"]]
    page.keyboard.press("j")
    playwright.expect(drawer).to_contain_text(second.rpartition("/")[2])
    page.keyboard.press("Escape")
    playwright.expect(drawer).to_be_hidden()
    playwright.expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    playwright.expect(drawer).to_be_visible()
    page.keyboard.press("Enter")

    playwright.expect(page.get_by_role("heading", name="invoice.created", level=1)).to_be_visible()
    assert page.url.endswith(second)


def test_a_filter_is_completed(open_page: Open, still: str) -> None:
    """By names and by values that the list has; the words before the last are kept."""
    page = open_page(f"{still}/agents/shop/messages")
    field = page.get_by_role("combobox", name="Filter")
    field.press_sequentially("state:sent ty")
    options = page.locator("#words option")

    playwright.expect(options.first).to_have_attribute("value", "state:sent type:json")
    assert all(
        str(each.get_attribute("value")).startswith("state:sent type:") for each in options.all()
    )


def test_times_are_local_or_utc(open_page: Open, still: str, made: Home) -> None:
    """The switch is remembered on the next page."""
    address = f"{still}/agents/shop/messages/{made.ids['order']}"
    page = open_page(address, timezone_id="Asia/Kolkata")
    when = page.locator(".steps time").first
    before = when.inner_text()
    page.get_by_role("button", name="times are UTC").click()
    after = when.inner_text()
    page.goto(address)

    assert before != after
    assert before[-6:] == after[-6:]
    playwright.expect(page.locator(".steps time").first).to_have_text(after)
    playwright.expect(page.get_by_role("button", name="times are local")).to_be_visible()


def test_a_selection_works_without_scripts(moving: str, open_page: Open) -> None:
    """Boxes and buttons are a plain form."""
    page = open_page(f"{moving}/agents/billing/messages?box=dead", java_script_enabled=False)
    page.get_by_role("checkbox").first.check()
    page.locator("#chosen").get_by_role("button", name="Discard").click()

    playwright.expect(page.get_by_role("heading", name="Discard a dead letter?")).to_be_visible()


def test_an_address_opens_from_another_site(open_page: Open, made: Home, tmp_path: Path) -> None:
    """Such as a chat: the one with the token, and then that of any page."""
    with served(made, tmp_path / "audit.jsonl", TOKEN) as address:
        page = open_page(f"data:text/html,<a href='{address}/?token={TOKEN}'>look</a>")
        page.get_by_text("look").click()
        playwright.expect(page.get_by_role("heading", name="problems")).to_be_visible()
        assert f"{address}/" == page.url
        page.goto(f"data:text/html,<a href='{address}/dead'>look</a>")
        page.get_by_text("look").click()

        playwright.expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        page.close()  # or it would complain of the end of the server


def test_pages_answer_without_scripts(open_page: Open, still: str) -> None:
    """Filters and links are plain forms and links; a chart is a table."""
    page = open_page(f"{still}/", java_script_enabled=False)
    page.locator(".values summary").click()
    assert page.locator(".values tbody tr").count() > 10
    page.get_by_label("Show").select_option("trouble")
    page.get_by_role("button", name="Filter").click()
    assert ["shop", "billing", "mailer"] == page.locator("main a.row").all_inner_texts()

    assert "show=trouble" in page.url


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return the folder for pictures: that of the documentation if they are to be made again."""
    folder = PICTURES if os.environ.get("ONCEWARD_SCREENSHOTS") == "1" else tmp_path
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("name", SHOTS)
def test_pictures_are_small(
    open_page: Open, still: str, made: Home, pictures: Path, name: str
) -> None:
    """Those of the documentation are made here."""
    width, scheme = SHOTS[name]
    address = address_of(name.removesuffix("-narrow"), made)
    page = open_page(still + address, width=width, color_scheme=scheme)
    settled(page)
    if name not in {"report", "problem"}:
        playwright.expect(page.locator("#live")).to_have_text("live")
    page.evaluate(PLACE, str(made.path))
    picture = pictures / f"{name}.png"
    tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    clip: Any = {"x": 0, "y": 0, "width": width, "height": tall}
    page.screenshot(path=picture, full_page=True, clip=clip, animations="disabled")

    assert picture.stat().st_size < MOST
