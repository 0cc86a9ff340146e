"""The site is whole: it builds without a warning, has every page, and each link leads somewhere."""

import importlib
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.docs.conftest import Site

ROOT = Path(__file__).parents[2]
PAGE = '<html><body><h1 id="top">x</h1>{}</body></html>'


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """Return a call that imports a script of the site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        yield importlib.import_module


def test_it_builds_without_a_warning(site: Site) -> None:
    """Links and anchors are checked by the renderer, and once more in the pages that it made."""
    assert (0, "") == (site.code, "" if site.code == 0 else site.printed)
    assert "No issues found" in site.printed


def test_every_page_is_in_the_navigation(scripts: Any, reference: dict[str, str]) -> None:
    """A page that the map of the front page does not name cannot be found in the site."""
    build, navigation = scripts("build"), scripts("navigation")
    placed = navigation.paths([{"Home": "index.md"}, *build.order()])
    generated = [f"reference/{name}" for name in reference]
    pages = {*scripts("staging").written(), *generated}

    assert [] == sorted(name for name in pages - set(placed) if name.endswith(".md"))
    assert len(placed) == len(set(placed))


@pytest.mark.parametrize(
    "path",
    ["reference/api/postbox", "reference/cli/dead", "reference/schema", "reference/settings"],
)
def test_a_generated_page_is_in_the_site(site: Site, path: str) -> None:
    """The whole page, not the short one that is committed."""
    text = (site.place / path / "index.html").read_text(encoding="utf-8")

    assert "The site has this page in full" not in text
    assert 20 < text.count("<code>")


def test_setup_is_folded_and_variants_are_tabs(site: Site) -> None:
    """A reader opens what the examples of a page rest on, and chooses sync or async."""
    journey = (site.place / "explanation/journey/index.html").read_text(encoding="utf-8")
    front = (site.place / "index.html").read_text(encoding="utf-8")

    assert re.search(r'<details class="note">\s*<summary>Set-up of the examples', journey)
    assert ["Sync", "Async"] == re.findall(r"<label for=\"__tabbed_1_\d\">(\w+)</label>", front)
    assert "*Sync*" not in front


def test_a_page_says_something_before_its_setup() -> None:
    """The first thing under a title is a sentence or a command, not a box about the examples."""
    pages = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}

    assert [] == [
        path.name
        for path, text in pages.items()
        if re.match(r"# .+\n(?:<!-- search: .+ -->\n)?\s*<!-- setup\n", text)
    ]


def test_a_block_has_the_name_of_its_file(site: Site) -> None:
    """What is to be saved says where."""
    page = (site.place / "start/quickstart/index.html").read_text(encoding="utf-8")

    assert ["billing.py", "shop.py", "send.py", "billing.db"] == re.findall(
        r'<span class="filename">(.+?)</span>', page
    )


def test_versions_are_listed_newest_first(site: Site, scripts: Any, tmp_path: Path) -> None:
    """A version that is built beside others is entered, and the root leads to the newest."""
    listed = json.loads((site.folder / "versions.json").read_text(encoding="utf-8"))
    for name in ("0.9", "0.10", "0.2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    scripts("build").enter(tmp_path)
    many = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))

    assert [version("onceward").rpartition(".")[0]] == [each["version"] for each in listed]
    assert ["0.10", "0.9", "0.2"] == [each["version"] for each in many]
    assert "url=0.10/" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('<a href="#top">x</a><a href="b/">x</a><a href="b/#here">x</a>', []),
        ('<a href="https://example.org/">x</a>', []),
        ('<a href="c/">x</a>', ["index.html: c/ leads nowhere"]),
        ('<a href="#no">x</a>', ["index.html: #no leads nowhere"]),
        ('<a href="b/#no">x</a>', ["index.html: b/#no leads nowhere"]),
        ('<img src="no.png">', ["index.html: no.png leads nowhere"]),
        (
            '<script src="https://example.org/x.js"></script>',
            ["index.html: loads https://example.org/x.js"],
        ),
    ],
)
def test_the_check_finds_faults(
    scripts: Any, tmp_path: Path, body: str, expected: list[str]
) -> None:
    """A page, an anchor or a picture that is not there, and what comes from another host."""
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(PAGE.format(body), encoding="utf-8")
    (tmp_path / "b" / "index.html").write_text('<p id="here">y</p>', encoding="utf-8")

    assert expected == scripts("links").faults(tmp_path)


def test_a_link_out_of_the_docs_leads_to_its_place_in_the_site(scripts: Any) -> None:
    """Or to the repository; code stays as it is."""
    linked = scripts("staging").linked
    code = "```python\ncalls[0](x)\n```"

    assert [
        "[a](../changelog.md)",
        "[b](api/postbox.md)",
        "[c](https://github.com/onceward/onceward/blob/main/examples/README.md)",
        "[d](schema.md#views)",
        code,
    ] == [
        linked(text, "docs/reference/x.md", "reference/x.md")
        for text in (
            "[a](../../CHANGELOG.md)",
            "[b](api.md#postbox)",
            "[c](../../examples/README.md)",
            "[d](../../schema/README.md#views)",
            code,
        )
    ]


def test_the_text_for_programs_has_every_page(site: Site) -> None:
    """llms.txt links each page as Markdown; llms-full.txt holds them all, in the same order."""
    listed = (site.place / "llms.txt").read_text(encoding="utf-8")
    whole = (site.place / "llms-full.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[.+?\]\((\S+?)\)", listed, re.MULTILINE)
    pages = re.findall(r"^<!-- (\S+\.md) -->$", whole, re.MULTILINE)

    assert [] == [link for link in links if not (site.place / link).is_file()]
    assert {"index.md", *links} == set(pages)
    assert len(pages) == len(set(pages))
    assert "## `.send_many()`" in whole
