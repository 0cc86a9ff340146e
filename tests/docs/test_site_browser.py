"""
The site in a real browser: readable by all at a desk, on a phone and in the dark.

Needs the extras ``docs`` and ``browser-test``, and a Chromium of the system.
"""

from __future__ import annotations

import functools
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.docs.conftest import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install 'onceward[browser-test]' runs these in a browser"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium runs these")

AXE = Path(__file__).parents[1] / "inspector" / "axe" / "axe.min.js"
PAGES = {
    "front": "",
    "quickstart": "start/quickstart/",
    "a page with a picture": "how-to/runs/steer/",
    "a class": "reference/api/postbox/",
    "commands": "reference/cli/dead/",
    "a wide table": "reference/settings/",
}
LOOKS = {
    "desk": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light"},
}
OURS = "article.md-content__inner"
"""The part of a page that we write; the frame is the theme's."""
THEIRS = "{rules: {'landmark-unique': {enabled: false}}}"
"""The theme puts the button of each block into a landmark."""

Open = Callable[..., "Page"]

playwright.expect.set_options(timeout=60_000)  # on a busy machine the index is built in seconds


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    """Serve the built site and return the address of this version."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site.folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{site.place.name}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the browser."""
    with playwright.sync_playwright() as playing:
        started = playing.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Open]:
    """Return a call that opens a page; it fails if the browser complains or asks another host."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith((address.rpartition("/0")[0], "data:", "blob:")):
            complaints.append(request.url)

    def opened(path: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", asked)
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.goto(address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [] == complaints


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_by_all(open_page: Open, name: str, look: str) -> None:
    """No violation that axe knows in what we write, and nothing wider than the screen."""
    page = open_page(PAGES[name], **LOOKS[look])
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(f"axe.run('{OURS}', {THEIRS})")
    inner, outer = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")

    assert [] == [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in found["violations"]
    ]
    assert inner <= outer


def test_the_search_finds_a_method(open_page: Open) -> None:
    """Without a server: the index is a file of the site."""
    page = open_page("")
    page.get_by_role("button", name="Search").first.click()
    page.get_by_role("combobox").first.fill("send_many")

    found = page.get_by_role("option", name=".send_many()").first
    playwright.expect(found).to_have_attribute("href", re.compile("reference/api/session/"))


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("fan out", "how-to/publish-and-subscribe/"),
        ("chain tasks", "how-to/work-in-steps/"),
        ("human approval", "how-to/work-in-steps/"),
        ("saga", "how-to/work-in-steps/"),
        ("jupyter", "how-to/inspect-with-sql/"),
        ("kubernetes", "how-to/deploy/"),
        ("poison message", "how-to/deal-with-dead-letters/"),
        ("postgres", "coming-from/procrastinate/"),
        ("workflow", "coming-from/dbos/"),
        ("django-rq", "coming-from/rq/"),
        ("kiq", "coming-from/taskiq/"),
        ("activity", "coming-from/temporal/"),
        ("kickoff", "coming-from/crewai/"),
        ("shared state", "explanation/agent-state/"),
    ],
)
def test_the_search_knows_the_words_of_other_tools(open_page: Open, words: str, page: str) -> None:
    """A page is found by words that it does not use itself."""
    opened = open_page("")
    opened.get_by_role("button", name="Search").first.click()
    opened.get_by_role("combobox").first.fill(words)
    found = opened.get_by_role("option")
    playwright.expect(found.first).to_be_visible()

    assert [] != [each for each in found.all() if f"/{page}?" in (each.get_attribute("href") or "")]


@pytest.mark.parametrize("words", ["kubernetes xylophone", "xylophone kubernetes"])
def test_the_search_finds_one_of_two_words(open_page: Open, words: str) -> None:
    """If no page has both words, those that have one of them are found."""
    opened = open_page("")
    opened.get_by_role("button", name="Search").first.click()
    opened.get_by_role("combobox").first.fill(words)
    found = opened.get_by_role("option")
    playwright.expect(found.first).to_be_visible()

    assert any("/how-to/deploy/" in (each.get_attribute("href") or "") for each in found.all())


def test_the_front_page_begins_with_what_to_do(open_page: Open) -> None:
    """Installation and the button are on the first screen, the icon that copies is seen there."""
    page = open_page("", viewport={"width": 1280, "height": 720}, color_scheme="light")
    button = page.get_by_role("link", name="Begin with the quickstart")
    icon = page.locator(".md-code__button").first
    colour = "each => getComputedStyle(each)"

    playwright.expect(page.get_by_text("git clone https:").first).to_be_in_viewport()
    playwright.expect(button).to_be_in_viewport()
    assert "rgba(0, 0, 0, 0)" != button.evaluate(f"{colour}.backgroundColor")
    assert 0.5 <= _opacity(icon.evaluate(f"{colour}.color"))


def _opacity(colour: str) -> float:
    """Return how far a colour covers what is behind it."""
    parts = re.findall(r"[\d.]+", colour)
    return float(parts[3]) if len(parts) > 3 else 1.0


def test_a_block_is_copied(open_page: Open) -> None:
    """The button takes the code, without anything around it."""
    page = open_page("start/quickstart/", permissions=["clipboard-read", "clipboard-write"])
    page.locator(".highlight", has_text="threading.Event").hover()
    page.locator(".highlight", has_text="threading.Event").locator("button").first.click()

    playwright.expect(page.get_by_text("Copied to clipboard")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("import threading\n")
    assert copied.rstrip().endswith("# until the process is ended")


def test_sync_and_async_are_tabs(open_page: Open) -> None:
    """The second shows the awaitable form in place of the first."""
    page = open_page("")
    page.get_by_text("Async", exact=True).click()

    playwright.expect(page.get_by_text("async def settle")).to_be_visible()
    playwright.expect(page.get_by_text("def pay")).to_be_hidden()


def test_the_versions_can_be_chosen(open_page: Open, site: Site) -> None:
    """The list names this version."""
    page = open_page("")

    playwright.expect(page.locator(".md-version")).to_contain_text(site.place.name)


def test_a_drawing_follows_the_colours_that_were_chosen(open_page: Open) -> None:
    """Not those of the system: a dark page has a dark drawing."""
    page = open_page("", color_scheme="light")
    light = page.locator("img[src='path.svg']").screenshot()
    page.get_by_title("Switch to light mode").click()
    page.get_by_title("Switch to dark mode").click()
    playwright.expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")

    assert light != page.locator("img[src='path.svg']").screenshot()
