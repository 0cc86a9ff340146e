"""Drawings, schemas and reference pages are what ``docs/site/generate.py`` writes from the code."""

import importlib
import json
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast, get_args

import jsonschema
import pytest
from pydantic import ValidationError

import onceward
import onceward.types
from onceward import Postbox, Settings, Tuning
from onceward.fleet import columns
from onceward.message import vocabulary
from onceward.message.parcel import Durability, ReceiptState
from onceward.transports import Frame

ROOT = Path(__file__).parents[2]
MOST_LINES = 60
"""Lines of a short page that stands in place of a generated one."""


class Classes(Protocol):
    """The part of ``docs/site/classes.py`` that is used here."""

    SECTIONS: dict[str, str]

    def _named(self, name: str) -> type:
        """Return the class of a name in a section."""
        ...


class Generator(Protocol):
    """The part of ``docs/site/generate.py`` that is used here."""

    classes: Classes
    stubs: Any

    def pages(self) -> dict[str, str]:
        """Return every generated file of the repository by its path in it."""
        ...


@pytest.fixture(scope="module")
def generator() -> Iterator[Generator]:
    """Return the script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        yield cast("Generator", importlib.import_module("generate"))


@pytest.fixture(scope="module")
def classes(generator: Generator) -> Classes:
    """Return the script that writes the pages of the classes."""
    return generator.classes


@pytest.fixture(scope="module")
def pages(generator: Generator) -> dict[str, str]:
    """Return what the script would write into the repository now."""
    return generator.pages()


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Return the published JSON Schema of a frame, ready to judge."""
    schema = json.loads((ROOT / "schema" / "frame.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_generated_files_are_up_to_date(pages: dict[str, str]) -> None:
    """The files are those that ``python3 docs/site/generate.py`` writes for the present code."""
    stale = [
        name
        for name, text in pages.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]

    assert [] == stale, "run: python3 docs/site/generate.py"


WRITTEN = ("benchmarks", "wire")
"""Pages of the reference, and their pictures, that are written by hand."""


def test_no_reference_page_of_the_site_is_committed(reference: dict[str, str]) -> None:
    """In the place of a generated page stands a short one, which leads to the source."""
    there = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "docs" / "reference").iterdir()
        if not path.stem.startswith(WRITTEN)
    }

    assert {name for name in reference if name.endswith(".md") and "/" not in name} == set(there)
    assert [] == [
        name
        for name, text in there.items()
        if len(text.splitlines()) > MOST_LINES or "](../../s" not in text or reference[name] == text
    ]


def test_the_command_of_a_short_page_prints_the_whole(generator: Generator) -> None:
    """All that the page names is printed from the code; ``api.md`` gives an example for a name."""
    found = {name: stub for name, stub in generator.stubs.stubs().items() if name != "api.md"}
    lacking = {
        name: {word for words in stub.names.values() for word in map(_first, words)}
        - set(re.findall(r"[\w.-]+", _printed(stub.command)))
        for name, stub in found.items()
    }

    assert [] == [(name, words) for name, words in lacking.items() if words]


def test_pydoc_finds_every_public_name(generator: Generator) -> None:
    """The command of ``api.md`` is an example that holds for each of its names."""
    names = [name for found in generator.stubs.stubs()["api.md"].names.values() for name in found]

    assert [] == [
        name
        for name in names
        if pydoc.locate(f"onceward.{name}") is None
        and pydoc.locate(f"onceward.types.{name}") is None
    ]


def _first(name: str) -> str:
    """Return the name, or the noun of a command: each noun has a help of its own."""
    return name.partition(" ")[0]


def test_a_short_page_names_what_its_files_define(generator: Generator) -> None:
    """A name is beside the file in which a reader finds it."""
    package = Path(onceward.__file__).parent
    lost = [
        (path, name)
        for page, stub in generator.stubs.stubs().items()
        if page != "cli.md"
        for path, names in stub.names.items()
        for name in names
        if name.rpartition(".")[2] not in (package / path).read_text(encoding="utf-8")
    ]

    assert [] == lost


def _printed(command: str) -> str:
    """Return what a command of a short page prints; this Python runs it."""
    words = command.replace("onceward --help", "python3 -m onceward --help").split()
    return subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, check=True
    ).stdout


def test_pydoc_lists_every_table_of_spark() -> None:
    """With its columns, and every option: no site need be built."""
    text = pydoc.plain(pydoc.render_doc("onceward.fleet.spark"))
    listed = {
        name: all(column in _section(text, name) for column in table.columns)
        for name, table in columns.tables().items()
    }

    assert dict.fromkeys(columns.tables(), True) == listed
    assert "maxRowsPerTrigger" in text


def _section(text: str, table: str) -> str:
    return text.partition(f"Table {table}:\n")[2].partition("\n\n")[0]


def test_every_arrow_of_the_architecture_joins_two_boxes(pages: dict[str, str]) -> None:
    """It begins at the edge of one step and its tip is at the edge of another."""
    drawing = pages["docs/explanation/architecture.svg"]
    boxes = [
        tuple(map(int, found))
        for found in re.findall(
            r'class="(?:step|back)" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawing
        )
    ]
    arrows = re.findall(r'class="move" d="M(\d+) (\d+)([^"]+)"', drawing)
    ends = [((int(x), int(y)), _end(int(x), int(y), rest)) for x, y, rest in arrows]

    assert len(boxes) - 1 == len(ends)
    assert [] == [
        each
        for each, start, end in zip(ends, boxes, boxes[1:], strict=False)
        if not (_is_on_edge(each[0], start) and _is_on_edge(each[1], end))
    ]


def _end(x: int, y: int, rest: str) -> tuple[int, int]:
    """Return where a path ends that goes on from a point."""
    numbers = [int(each) for each in re.findall(r"\d+", rest)]
    if rest.startswith(("H", "V")):
        return (numbers[0], y) if rest.startswith("H") else (x, numbers[0])
    return numbers[-2], numbers[-1]


def _is_on_edge(point: tuple[int, int], box: tuple[int, ...]) -> bool:
    """Return whether a point is at the edge of a box, to one unit."""
    (x, y), (left, top, width, height) = point, box
    across = min(abs(x - left), abs(x - left - width)) <= 1 and top <= y <= top + height
    along = min(abs(y - top), abs(y - top - height)) <= 1 and left <= x <= left + width
    return across or along


def test_every_public_name_has_a_place(classes: Classes) -> None:
    """A new public name is put beside its relatives; errors have their own page."""
    placed = (
        {name for listed in classes.SECTIONS.values() for name in listed.split()}
        | set(dir(onceward.errors))
        | {"errors"}
    )

    assert set() == {*onceward.__all__, *onceward.types.__all__} - placed


def test_a_class_lists_every_public_member(classes: Classes, reference: dict[str, str]) -> None:
    """Also what it inherits: a reader of Postbox finds begin, send and publish there."""
    missing = [
        f"{kind.__name__}.{name}"
        for listed in classes.SECTIONS.values()
        for public in listed.split()
        if isinstance(kind := classes._named(public), type)
        for name in _members(kind)
        if not re.search(rf"\b{name}\b", reference[f"api/{public.lower()}.md"])
    ]
    assert [] == missing


def test_a_class_has_a_page_and_a_line_in_the_list(
    classes: Classes, reference: dict[str, str]
) -> None:
    """No two names share a page, and each is listed with what it is."""
    names = [name for listed in classes.SECTIONS.values() for name in listed.split()]
    rows = re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \| \S", reference["api.md"], re.MULTILINE)

    assert [(name, f"api/{name.lower()}.md") for name in names] == rows
    assert len(names) == len({path for _, path in rows} & set(reference))


def test_an_awaitable_class_leads_to_its_sync_twin(reference: dict[str, str]) -> None:
    """And back: both have the same calls."""
    assert "The same, awaitable: [`AsyncPostbox`](asyncpostbox.md)." in reference["api/postbox.md"]
    assert "The same, sync: [`Postbox`](postbox.md)." in reference["api/asyncpostbox.md"]


def test_every_command_has_a_section(reference: dict[str, str]) -> None:
    """It stands on the page of its group, with its usage, and is listed with what it does."""
    app = pytest.importorskip("onceward.ops.cli.app", reason="the command is an extra")
    groups = "".join(text for name, text in reference.items() if name.startswith("cli/"))

    assert [] == [
        name
        for name in app.COMMANDS
        if f"## onceward {name}\n\n```text\nonceward {name}" not in groups
        or f"| [`{name}`](cli/" not in reference["cli.md"]
    ]
    assert len(app.COMMANDS) == groups.count("\n## onceward ")


def _members(kind: type) -> list[str]:
    return [
        name
        for base in kind.__mro__
        if base.__module__.startswith("onceward.")
        and base.__name__ not in {"Settings", "Tuning", "Frame"}
        for name, value in vars(base).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    ]


def test_types_are_shown_as_users_write_them(reference: dict[str, str]) -> None:
    """No checks in types; a setting says whether it takes a number, a span, a text or a list."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", reference["settings.md"], re.MULTILINE)
    kinds = {name: kind.strip() for name, kind in rows}

    api = "".join(text for name, text in reference.items() if name.startswith("api"))
    assert [] == re.findall(r"Annotated\[|: Seconds\b", api)
    assert {*Settings.model_fields, *Tuning.model_fields} == kinds.keys()
    assert ("true or false", "whole number", "list of texts", "path") == tuple(
        kinds[name] for name in ("search", "max_body", "topics", "audit")
    )
    assert {"seconds, timedelta, or text such as `2h30m`"} == {kinds["lease"], kinds["retention"]}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Durability", Durability),
        ("QueueState", vocabulary.QueueState),
        ("Reason", vocabulary.Reason),
        ("SentState", vocabulary.SentState),
    ],
)
def test_a_closed_set_lists_its_values(name: str, values: Any, reference: dict[str, str]) -> None:
    """A type that a signature names only by name is explained on the same page."""
    expected = f"| `{name}` | {', '.join(f'`{value}`' for value in get_args(values))} |"

    assert [expected] == [
        line for line in reference["api.md"].splitlines() if line.startswith(f"| `{name}` |")
    ]


@pytest.mark.parametrize("page", ["events.md", "errors.md", "frame.md"])
def test_no_row_is_without_meaning(page: str, reference: dict[str, str]) -> None:
    """Every event, error and attribute says what it is."""
    empty = [
        line
        for line in reference[page].splitlines()
        if re.fullmatch(r"\|.*\|\s+\|", line) and "HandlerSignal" not in line
    ]

    assert [] == empty


def test_guarantees_name_every_durability_class() -> None:
    """The page that says what a commit survives says it of each class there is."""
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")

    assert [] == [name for name in get_args(Durability) if f"| `{name}`" not in text]


def test_glossary_names_every_receipt() -> None:
    """What a peer may say of a frame is explained."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

    assert [] == [name for name in get_args(ReceiptState) if f"`{name}`" not in text]


def test_the_glossary_is_short() -> None:
    """At most 30 words need it; the others mean what they mean elsewhere."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

    assert 20 <= text.count("\n| **") <= 30


SENT: list[tuple[object, dict[str, Any]]] = [
    ({"id": 7}, {}),
    (None, {"type": "nothing"}),
    ("text", {"priority": "critical", "topic": "a.b", "ttl": 60, "delay": 5}),
    (b"\x00\xff", {"key": "k", "reply_to": "carol", "ordering_key": "lane"}),
    (
        [1, "two", 3.5, None, True],
        {
            "correlation_id": "c",
            "causation_id": "d",
            "headers": {"traceparent": "x", "flag": True, "n": 5},
        },
    ),
]


@pytest.mark.parametrize(("body", "options"), SENT)
def test_what_is_sent_fits_the_published_schema(
    body: object,
    options: dict[str, Any],
    validator: jsonschema.Draft202012Validator,
    tmp_path: Path,
) -> None:
    """Frames fit ``frame.schema.json``, for all kinds of bodies and options."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        box.send("b", body, **options)
        [past] = box.history().messages

    assert [] == [error.message for error in validator.iter_errors(json.loads(past.text))]


def test_what_sql_sends_fits_the_published_schema(
    validator: jsonschema.Draft202012Validator, tmp_path: Path
) -> None:
    """The frame that the view ``send`` builds is judged by the same schema."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        with box.begin() as tx:
            tx.execute(
                "INSERT INTO onceward_send (recipient, type, body, topic, priority, ttl, "
                "key, ordering_key, correlation_id)"
                " VALUES ('b', 't', '{\"x\": null}', 'a.b', 'urgent', 60, 'k', 'lane', 'c')"
            )
            tx.execute("INSERT INTO onceward_send (recipient, type) VALUES ('b', 't')")
        frames = [json.loads(past.text) for past in box.history().messages]

    assert [] == [error.message for frame in frames for error in validator.iter_errors(frame)]


GOOD = {"specversion": "1.0", "id": "1", "source": "urn:onceward:a", "type": "t", "recipient": "b"}
JUDGED = [
    (GOOD, True),
    (GOOD | {"data": {"a": [1]}, "myext": "x", "n": 1, "flag": False}, True),
    (GOOD | {"data": None, "data_base64": "AA=="}, True),
    (GOOD | {"session": None, "topic": None, "priority": None, "myext": None}, True),
    (GOOD | {"data": 1, "data_base64": "AA=="}, False),
    (GOOD | {"myext": "line\nbreak"}, False),
    (GOOD | {"Upper": "x"}, False),
    (GOOD | {"with_underscore": "x"}, False),
    (GOOD | {"myext": {"no": "object"}}, False),
    (GOOD | {"n": 2**31}, False),
    (GOOD | {"priority": 5}, False),
    (GOOD | {"recipient": "no spaces"}, False),
    (GOOD | {"specversion": "2.0"}, False),
    ({"specversion": "1.0", "id": "1"}, False),
]


@pytest.mark.parametrize(("frame", "is_one"), JUDGED)
def test_schema_and_model_judge_alike(
    frame: dict[str, Any], is_one: bool, validator: jsonschema.Draft202012Validator
) -> None:
    """The published schema and the receiver accept the same frames."""
    assert (is_one, is_one) == (validator.is_valid(frame), _is_frame(frame))


def _is_frame(frame: dict[str, Any]) -> bool:
    try:
        Frame.parse(json.dumps(frame))
    except (ValidationError, onceward.errors.InvalidMessage):
        return False
    return True
