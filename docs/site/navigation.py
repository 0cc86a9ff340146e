"""
Read the order of the pages from the map in ``docs/index.md``.

The map is what a reader on GitHub follows, so a page is entered once. A heading is a tab of the
site, a line that ends with a colon a group in it, a list item a page or several.
"""

from __future__ import annotations

import re
from typing import Any

MAP = "<!-- map -->"
HEADING = re.compile(r"## (?P<title>.+)")
GROUP = re.compile(r"(?P<title>[^-].*):")
LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<path>[^)#:]+\.md)\)")


def parted(index: str) -> tuple[str, str]:
    """Return the front page and the map behind it."""
    front, mark, listed = index.partition(MAP)
    assert mark, f"docs/index.md has no {MAP}"  # noqa: S101 - a script
    return front, listed


def navigation(index: str) -> list[dict[str, Any]]:
    """Return the navigation: tabs, which hold pages and groups of pages; each page once."""
    tabs: list[dict[str, Any]] = []
    pages: list[Any] = []
    group: list[Any] = []
    seen = {"index.md"}
    for line in parted(index)[1].splitlines():
        if heading := HEADING.fullmatch(line):
            group = pages = []
            tabs.append({heading["title"]: pages})
        elif named := GROUP.fullmatch(line):
            group = []
            pages.append({named["title"]: group})
        for link in LINK.finditer(line):
            if link["path"] not in seen:
                group.append({link["title"]: link["path"]})
                seen.add(link["path"])
    return tabs


def paths(tree: list[Any]) -> list[str]:
    """Return the pages of a navigation, in their order."""
    found: list[str] = []
    for each in tree:
        for value in each.values() if isinstance(each, dict) else [each]:
            found += [value] if isinstance(value, str) else paths(value)
    return found
