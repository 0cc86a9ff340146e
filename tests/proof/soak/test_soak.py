"""The soak: a short course runs, and a thing that grows would be seen."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.proof.soak.mixed import KINDS, mixed, path_of, wrong
from tests.proof.soak.picture import STRIPS, picture
from tests.proof.soak.run import Course, Sample, soak

from onceward import Postbox

FLAT = Sample(at=0.0, messages=0, rss=50.0, descriptors=20, wal=4.0, rows=1000, file=8.0)

FIRST = "SELECT token FROM work JOIN results USING (token) WHERE kind <> 'cancelled' LIMIT 1"


def course(leak: float = 0.0) -> Course:
    """Return a course of a minute in which memory grows by so much in a second."""
    return Course(
        tuple(
            replace(FLAT, at=float(at), messages=1000 * at, rss=50.0 + leak * at)
            for at in range(60)
        )
    )


@pytest.mark.timeout(300)
def test_a_short_course() -> None:
    """Both processes live, messages have their effect, and everything that may grow is seen."""
    seen = soak(seconds=3.0, rate=100.0, every=0.2)

    last = seen.samples[-1]
    assert 0 < last.messages
    assert all(value > 0 for value in (last.rss, last.descriptors, last.wal, last.rows, last.file))


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_short_course_of_mixed_use(tmp_path: Path) -> None:
    """All work is done once through kills, restores and jumps; a lost or doubled one is named."""
    _, told = mixed(tmp_path, seconds=12.0, rate=5.0)
    till, shop = path_of(tmp_path, "till"), path_of(tmp_path, "shop")
    with Postbox(till, agent="till", start=False) as box, box.begin() as tx:
        tx.execute("INSERT INTO effects SELECT token FROM effects LIMIT 1")
    with Postbox(shop, agent="shop", start=False) as box, box.begin() as tx:
        tx.execute(f"DELETE FROM results WHERE token = ({FIRST})")

    assert [] == told["wrong"]
    assert set(told["work"]) <= {*KINDS}
    twice, missing = wrong(tmp_path)
    assert twice.startswith("2 effects at till: ")
    assert missing.startswith("no result of ")


def test_a_leak_has_a_slope() -> None:
    """What grows by a MiB in ten seconds grows by 360 in an hour, and what is flat by nothing."""
    assert (360, 0, 0) == (
        round(course(0.1).slope("rss")),
        course(0.1).slope("rows"),
        course().slope("rss"),
    )
    assert 1000 == course().told()["messages_per_second"]


def test_the_picture_has_a_line_for_each() -> None:
    """The picture is SVG, with one strip for each thing."""
    root = ET.fromstring(picture(course()))  # noqa: S314 - our own text

    assert len(STRIPS) == len(root.findall("{http://www.w3.org/2000/svg}polyline"))
