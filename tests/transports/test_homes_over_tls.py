"""Homes over https: their keys say who asks, the certificates who answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests.transports.homes import Home, carried, home, two_homes
from tests.transports.over_http import files_of

from onceward.errors import Unreachable


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return an authority for certificates."""
    return trustme.CA()


@pytest.fixture
def how(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """Return the url of a home, and the files of its certificate."""
    certfile, keyfile = files_of(authority, tmp_path, "localhost")
    return {"url": "https://localhost:0", "certfile": certfile, "keyfile": keyfile}


@pytest.fixture
def both(
    authority: trustme.CA, how: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Home, Home]]:
    """Yield two homes that know each other, and trust the authority."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("ONCEWARD_HTTP_CA", str(tmp_path / "ca.pem"))
    with two_homes(tmp_path, ("a0",), ("b0",), **how) as found:
        yield found


def test_agents_reach_each_other_over_https(both: tuple[Home, Home]) -> None:
    """In both directions, also after the key of one home was changed."""
    near, far = both
    there = carried(near.boxes["a0"], far.boxes["b0"], "b0", "there")
    far.homes.rotate()
    back = carried(far.boxes["b0"], near.boxes["a0"], "a0", "back")
    again = carried(near.boxes["a0"], far.boxes["b0"], "b0", "again")

    assert ("there", "back", "again") == (there, back, again)
    assert [near.url[:8], far.url[:8]] == ["https://"] * 2


def test_a_certificate_that_is_not_trusted_adds_no_home(
    how: dict[str, str], tmp_path: Path
) -> None:
    """The error names the setting that trusts its authority; nothing is written."""
    with home(tmp_path / "near", ("a0",)) as near, home(tmp_path / "far", ("b0",), **how) as far:
        with pytest.raises(Unreachable, match=r"certificate: .* set ONCEWARD_HTTP_CA to the file"):
            near.knows(far, "far")

        assert [] == near.homes.list()
