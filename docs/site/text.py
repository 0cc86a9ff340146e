"""Write the documentation as text for programs that read: llms.txt and llms-full.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from navigation import paths

SUMMARY = """# onceward

> Exactly-once messages between agents, in one SQLite file each. A Python package, no server.

A program that sends a message opens a `Postbox` on its agent's file and sends inside the
transaction of its own rows. Handlers are functions of an `Agent`. Each page below is also there
as Markdown; all of them in one file: [llms-full.txt](llms-full.txt).
"""
SKILL = "- [How to write an onceward agent](skill.md): rules and examples for coding agents.\n"
HEADING = re.compile(r"^# (?P<title>.+)$", re.MULTILINE)
SENTENCE = re.compile(r"^(?:[A-Z`*][^\n]*\n)+", re.MULTILINE)


def write(site: Path, pages: dict[str, str], nav: list[dict[str, Any]]) -> None:
    """Write both texts, and each page as Markdown, into the built site."""
    for name, text in pages.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    order = ["index.md", *dict.fromkeys(paths(nav))]
    order += sorted(set(pages) - set(order))
    (site / "llms.txt").write_text(listed(pages, nav), encoding="utf-8")
    whole = "\n\n".join(f"<!-- {name} -->\n\n{pages[name].strip()}" for name in order)
    (site / "llms-full.txt").write_text(f"{whole}\n", encoding="utf-8")


def listed(pages: dict[str, str], nav: list[dict[str, Any]]) -> str:
    """Return llms.txt: a link and a sentence for each page of the navigation, by section."""
    parts = [SUMMARY]
    for tab in nav:
        for title, tree in tab.items():
            lines = [_line(name, pages[name]) for name in dict.fromkeys(paths(tree))]
            parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(name: str, text: str) -> str:
    title = HEADING.search(text)
    rest = text[title.end() :] if title else text
    said = SENTENCE.search(rest)
    first = " ".join(said[0].split()).partition(". ")[0].rstrip(".") if said else ""
    return f"- [{title['title'] if title else name}]({name})" + (f": {first}." if first else "")
