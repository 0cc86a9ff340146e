"""
Put the pages together that the site is built from: written ones, and those that code describes.

Written pages stay readable on GitHub. What Markdown there cannot say is made here: a set-up block
in a comment becomes a folded one, the file of a block its title, blocks after *Sync* and *Async*
become tabs, and a link out of ``docs`` leads to the page that has its place, or to the repository.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

import generate
from navigation import parted

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HERE = Path(__file__).parent
REPOSITORY = "https://github.com/onceward/onceward/blob/main/"
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "schema/README.md": "reference/schema.md",
    "schema/DIRECTORY.md": "reference/directory.md",
}
"""Pages of the site by the files of the repository that say the same."""

SETUP = re.compile(r"^<!-- setup\n(?P<text>.*?)^-->$", re.MULTILINE | re.DOTALL)
BEGIN = re.compile(r"^\*\*\[Begin with .+\)\*\*.*$", re.MULTILINE)
"""The line of the front page whose link is a button of the site."""
COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
FENCE = re.compile(
    r"^```(?P<language>\w+)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
BLOCK = r"\*{name}\*\n\n(?P<{name}>```python.*?^```\n)"
TABS = re.compile(
    "^" + BLOCK.format(name="Sync") + r"\n" + BLOCK.format(name="Async"), re.MULTILINE | re.DOTALL
)
LINK = re.compile(
    r"(?P<code>^```.*?^```$)|(?<!`)(?P<text>\[[^\]]*\]\()(?P<target>[^)\s]+)(?=\))",
    re.MULTILINE | re.DOTALL,
)
"""A block of code, which stays as it is, or a link."""


def stage(folder: Path) -> dict[str, str]:
    """Write all pages and pictures into a folder; return the pages by path."""
    found = written() | {
        f"reference/{name}": linked(text, f"docs/reference/{name}", f"reference/{name}")
        for name, text in generate.reference().items()
    }
    for path in _pictures():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS / path, folder / path)
    shutil.copytree(HERE / "theme", folder / "assets")
    for name, text in found.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown(text) if name.endswith(".md") else text, encoding="utf-8")
    return {name: text for name, text in found.items() if name.endswith(".md")}


def written() -> dict[str, str]:
    """Return the written pages by their path in the site, with links that hold there."""
    sources = {
        path.relative_to(DOCS).as_posix(): path
        for path in sorted(DOCS.rglob("*.md"))
        if HERE not in path.parents
    }
    found = {
        name: linked(path.read_text(encoding="utf-8"), f"docs/{name}", name)
        for name, path in sources.items()
    }
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found["changelog.md"] = linked(changelog, "CHANGELOG.md", "changelog.md")
    front = parted(found["index.md"])[0]  # the navigation of the site is the map
    found["index.md"] = BEGIN.sub(r"\g<0>\n{ .begin }", front)
    return found


def _pictures() -> list[str]:
    kept = (path for path in DOCS.rglob("*") if path.is_file() and path.suffix != ".md")
    return sorted(path.relative_to(DOCS).as_posix() for path in kept if HERE not in path.parents)


def linked(text: str, source: str, page: str) -> str:
    """Return a page whose links hold in the site; *source* is its path in the repository."""
    return LINK.sub(
        lambda found: found["code"] or found["text"] + _target(found["target"], source, page),
        text,
    )


def _target(target: str, source: str, page: str) -> str:
    name, mark, anchor = target.partition("#")
    if not name or "://" in name:
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path == "docs/reference/api.md" and anchor:  # a class has a page of its own
        path, mark, anchor = f"docs/reference/api/{anchor}.md", "", ""
    place = MOVED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if place is None:
        return f"{REPOSITORY}{path}{mark}{anchor}"
    return posixpath.relpath(place, posixpath.dirname(page) or ".") + mark + anchor


def shown(text: str) -> str:
    """Return a page as the site shows it."""
    text = SETUP.sub(lambda found: folded("Set-up of the examples", found["text"]), text)
    text = FENCE.sub(_fence, COMMENT.sub("", text))
    return TABS.sub(lambda found: _tab("Sync", found) + "\n" + _tab("Async", found), text)


def folded(title: str, code: str) -> str:
    """Return code in a block that a reader opens."""
    return f'??? note "{title}"\n\n' + _indented(f"```python\n{code}```\n")


def _fence(found: re.Match[str]) -> str:
    title = f' title="{found["file"]}"' if found["file"] else ""
    language = "python" if found["language"] == "py" else found["language"]
    return f"```{language}{title}\n{found['text']}```"


def _tab(name: str, found: re.Match[str]) -> str:
    return f'=== "{name}"\n\n' + _indented(found[name])


def _indented(text: str) -> str:
    return "".join(
        f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True)
    )
