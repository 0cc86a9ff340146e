"""Check a built site: its links and anchors lead somewhere, and its pages load nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
"""Attributes by tag whose address a browser loads with the page."""
NAMED = {"canonical", "next", "prev", "alternate"}
"""Relations of a link that a browser does not load."""


class Page(HTMLParser):
    """The anchors, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names, leads to and loads."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        address = given.get(LOADS.get(tag, ""), "")
        if address and given.get("rel") not in NAMED:
            self.loads.add(address)


def faults(site: Path) -> list[str]:
    """Return each link that leads nowhere and each address of another host that a page loads."""
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name}: loads {each}" for each in sorted(page.loads) if urlsplit(each).netloc]
        found += [
            f"{name}: {each} leads nowhere"
            for each in sorted(page.links | page.loads)
            if not urlsplit(each).scheme and not _exists(each, path, site, pages)
        ]
    return found


def _exists(address: str, path: Path, site: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    if parts.netloc:
        return True
    name = unquote(parts.path)
    base = site if name.startswith("/") else path.parent
    target = (base / name.lstrip("/")).resolve() if name else path
    target = target / "index.html" if target.is_dir() else target
    if target == site.parent / "index.html":
        return True  # the list of versions
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors
