"""One message after the other: what its two sides say, and the verdict that follows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.cases import CASES, ELSEWHERE, FILES, RULES, evidence, expected, give

from onceward.fleet.coverage import Reading
from onceward.fleet.engine import give_verdicts
from onceward.fleet.loading import workspace
from onceward.fleet.verdicts import NAMES

Key = tuple[str, str, str]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Key, str]]:
    """Return the verdict of every case, judged together."""
    con = workspace(tmp_path_factory.mktemp("judged") / "messages.db")
    messages = [row for row in evidence() if row[0] is not None]
    give(con, messages)
    files = [Reading.of(name, said) for name, said in FILES.items() if name != "broken"]
    give_verdicts(con, files, RULES)
    found = con.execute("SELECT sender, recipient, id, verdict FROM messages").fetchall()
    yield {(str(s), str(r), str(i)): str(verdict) for s, r, i, verdict in found}
    con.close()


@pytest.mark.parametrize("name", CASES)
def test_what_two_sides_say_has_one_verdict(name: str, verdicts: dict[Key, str]) -> None:
    """Every combination that files can be in is judged as the page of verdicts says."""
    assert CASES[name][0] == verdicts["alice", "bob", name]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_missing_is_judged_by_horizons(name: str, verdicts: dict[Key, str]) -> None:
    """A record that may have been pruned is told from one that must be there."""
    verdict, pair, key, _ = ELSEWHERE[name]

    assert verdict == verdicts[(*pair, key)]


def test_every_verdict_is_tried() -> None:
    """No word of the report is without a case."""
    assert set(NAMES) == set(expected().values())


def test_no_message_is_left_out(verdicts: dict[Key, str]) -> None:
    """A message gets one verdict, and a file is not a message."""
    assert set(expected()) == set(verdicts)


def test_a_workspace_needs_no_file_before(tmp_path: Path) -> None:
    """What a broken run left in its place is replaced."""
    (tmp_path / "messages.db").write_text("not a database", encoding="utf-8")
    con = workspace(tmp_path / "messages.db")

    assert [(0,)] == con.execute("SELECT count(*) FROM temp.evidence").fetchall()
    con.close()
