"""
Build the site of the documentation.

    python3 -m pip install -e '.[docs]' && python3 docs/site/build.py

writes ``build/site``: a folder for each version, beside ``versions.json`` and a page that leads to
the newest. A warning, a link without an end or an address of another host is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import classes
import commands
import links
import text
from navigation import navigation
from staging import DOCS, HERE, ROOT, linked, stage

ASK = 'let l=J({type:"text",data:t.data});'
AGAIN = 'if(!l.data.items.length){self.joint="or";l=J({type:"text",data:asked})}'
SEARCH_WORDS = (
    ('"and",', 'self.joint||"and",'),
    (ASK, f'const asked=structuredClone(t.data);self.joint="and";{ASK}{AGAIN}'),
)
"""Places in the script of the renderer that searches, and what stands there instead."""
SEARCH = re.compile(r"^<!-- search: (?P<words>.+) -->$", re.MULTILINE)
"""Words that readers look for and that a page does not use."""
FORWARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>onceward</title>
<meta http-equiv="refresh" content="0; url={newest}/">
<p><a href="{newest}/">The newest version</a></p>
</html>
"""


def main() -> int:
    """Build the site of this version and return the exit code."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder")
    out: Path = parser.parse_args().out
    place = out / number()
    with tempfile.TemporaryDirectory() as folder:
        done = build(Path(folder), place)
    if done != 0:
        return done
    enter(out)
    found = links.faults(place)
    sys.stdout.write("\n".join(found or [f"built {place}"]) + "\n")
    return 1 if found else 0


def number() -> str:
    """Return the version that the folder is named by: patch releases replace each other."""
    return ".".join(version("onceward").split(".")[:2])


def build(folder: Path, place: Path) -> int:
    """Stage the pages, render them into *place*, and return the renderer's exit code."""
    pages = stage(folder / "docs")
    (folder / "mkdocs.yml").write_text(json.dumps(settings()), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    ran = subprocess.run(  # noqa: S603 - our own words
        [*command, "--config-file", str(folder / "mkdocs.yml")], cwd=folder, check=False
    )
    if ran.returncode == 0:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "site", place)
        mend(place)
        find(place, pages)
        relax(place)
        text.write(place, pages, order())
    return ran.returncode


def mend(place: Path) -> None:
    """Make the empty heads of tables plain cells: a screen reader announces a head."""
    for path in place.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if "<th></th>" in page:
            path.write_text(page.replace("<th></th>", "<td></td>"), encoding="utf-8")


def find(place: Path, pages: dict[str, str]) -> None:
    """Add to the index the words of other tools that a page says it answers to."""
    index = json.loads((place / "search.json").read_text(encoding="utf-8"))
    items = {each["location"]: each for each in index["items"]}
    for name, page in pages.items():
        if found := SEARCH.search(page):
            items[f"{name.removesuffix('.md')}/"]["text"] += f"<p>{found['words']}</p>"
    (place / "search.json").write_text(json.dumps(index), encoding="utf-8")


def relax(place: Path) -> None:
    """
    Let the search look for any of its words where no page has all of them.

    Raises:
        ValueError: the renderer's search has changed, and with it these places.

    """
    [worker] = (place / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = worker.read_text(encoding="utf-8")
    for before, after in SEARCH_WORDS:
        if script.count(before) != 1:
            raise ValueError(f"{worker.name} has {before!r} {script.count(before)} times, not once")
        script = script.replace(before, after)
    worker.write_text(script, encoding="utf-8")


def order() -> list[dict[str, Any]]:
    """Return the navigation: the map of the front page, with the generated pages in their place."""
    index = linked((DOCS / "index.md").read_text(encoding="utf-8"), "docs/index.md", "index.md")
    tabs = navigation(index)
    for tab in tabs:
        for pages in tab.values():
            pages[:] = [_opened(each) for each in pages]
    return tabs


def _opened(each: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the navigation, with the pages of its groups where code gives them."""
    [(title, path)] = each.items()
    inner = {"reference/api.md": classes.navigation, "reference/cli.md": commands.navigation}
    if isinstance(path, list) or path not in inner:
        return each
    return {title: [path, *inner[path]()]}


def settings() -> dict[str, object]:
    """Return the settings of the renderer, which reads JSON as YAML."""
    given = tomllib.loads((HERE / "site.toml").read_text(encoding="utf-8"))
    listed = [{"Home": "index.md"}, *order()]
    return given | {"nav": listed, "docs_dir": "docs", "site_dir": "site"}


def enter(out: Path) -> None:
    """List the versions that are there, and lead to the newest."""
    there = [path.parent.name for path in out.glob("*/index.html")]
    listed = sorted(there, key=lambda each: [int(part) for part in each.split(".")], reverse=True)
    versions = [{"version": each, "title": each, "aliases": []} for each in listed]
    (out / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
    (out / "index.html").write_text(FORWARD.format(newest=listed[0]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
