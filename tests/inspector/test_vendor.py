"""The files of others: from where, under which licence, and unchanged."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import onceward.ops.inspector

FOLDER = Path(onceward.ops.inspector.__file__).parent
VENDOR = FOLDER / "static" / "vendor"
KEYS = {"package", "version", "licence", "licence_file", "sha256"}


def test_each_file_is_the_published_one() -> None:
    """Its digest is written down with its package, version and licence."""
    known = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    there = {path.name for path in VENDOR.iterdir() if path.suffix in {".js", ".css"}}

    assert known.keys() == there
    for name, facts in known.items():
        assert (KEYS, facts["sha256"]) == (
            set(facts),
            hashlib.sha256((VENDOR / name).read_bytes()).hexdigest(),
        )
        assert (VENDOR / facts["licence_file"]).read_text(encoding="utf-8").strip()


def test_pages_ask_no_other_site() -> None:
    """No address of another host is in a template, a script or a style sheet of ours."""
    ours = [*FOLDER.rglob("*.html"), *(FOLDER / "static").glob("*.*")]
    found = [
        f"{path.name}: {address}"
        for path in ours
        for address in re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", path.read_text())
        if "www.w3.org" not in address
    ]

    assert len(ours) > 10
    assert [] == found


def test_templates_have_no_script_and_no_style() -> None:
    """The policy of the pages forbids both; so does this test, before a browser is asked."""
    found = [
        f"{path.name}: {match}"
        for path in (FOLDER / "templates").glob("*.html")
        for match in re.findall(
            r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|<script(?! src=)",
            path.read_text(encoding="utf-8"),
        )
    ]

    assert [] == found


def test_no_value_leaves_a_template_unescaped() -> None:
    """The filter ``safe`` is used nowhere."""
    found = [
        path.name
        for path in (FOLDER / "templates").glob("*.html")
        if re.search(r"\|\s*safe\b|Markup", path.read_text(encoding="utf-8"))
    ]

    assert [] == found
