"""A home has one key, which is created once, read by its owner only, and rotated without a gap."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest

from onceward.errors import InvalidArgument, MissingExtra, UnknownKey, UnsafeKey
from onceward.homes import Homes
from onceward.keys import Keys
from onceward.transports.network import identity
from onceward.transports.network.identity import (
    IdentityFile,
    check_fingerprint,
    encoded,
    fingerprint_of,
    former_of,
    verified,
)
from onceward.transports.network.private_files import write_private

WRITE = "onceward.transports.network.identity.write_private"


def test_a_key_is_created_once_for_its_owner_only(tmp_path: Path) -> None:
    """The second look shows the same fingerprint, in the form of SSH's."""
    first, second = Homes(tmp_path).show(), Homes(tmp_path).show()
    path = tmp_path / "identity" / "home.key"

    assert first == second
    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    assert first.fingerprint == check_fingerprint(first.fingerprint)
    assert ["home.key"] == [each.name for each in path.parent.iterdir()]


def test_of_two_processes_one_creates_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that finds a key which came in between takes that one."""
    others = list[str]()

    def late(path: Path, text: str, *, replace: bool) -> None:
        monkeypatch.setattr(WRITE, write_private)
        others.append(IdentityFile(tmp_path).create().fingerprint)
        write_private(path, text, replace=replace)

    monkeypatch.setattr(WRITE, late)
    ours = IdentityFile(tmp_path).create().fingerprint

    assert others == [ours]


def test_a_crash_leaves_the_key_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before the file is synced leaves no key, or the one before a rotation."""

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            IdentityFile(tmp_path).create()
    none = IdentityFile(tmp_path).load()
    before = IdentityFile(tmp_path).create()
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        IdentityFile(tmp_path).rotate()

    found = IdentityFile(tmp_path).load()
    assert (None, before.fingerprint) == (none, found and found.fingerprint)
    assert ["home.key"] == [each.name for each in (tmp_path / "identity").iterdir()]


def test_former_keys_lead_to_the_present_one(tmp_path: Path) -> None:
    """Each rotation signs the next key, and the chain names all former ones, newest first."""
    file = IdentityFile(tmp_path)
    marks = [file.create().fingerprint, file.rotate().fingerprint]
    own = file.rotate()

    former = [fingerprint_of(old) for old in former_of(own.public, own.chain())]

    assert marks[::-1] == former
    assert all(own.known_as(mark) for mark in (*marks, own.fingerprint))


def test_a_chain_that_is_not_signed_leads_nowhere(tmp_path: Path) -> None:
    """A key that did not sign the next one is no former key of it, nor are those behind it."""
    file = IdentityFile(tmp_path)
    victim = file.create()
    own = file.rotate()
    [(old, signature)] = own.former
    other = encoded(victim.public[::-1])

    chains = (
        "",
        f"{other}:{encoded(signature)}",
        f"{encoded(old)}:{encoded(signature[::-1])}",
        ",",
    )
    assert [[], [], [], []] == [former_of(own.public, chain) for chain in chains]
    assert [] == former_of(victim.public, own.chain())


def test_a_home_remembers_eight_former_keys(tmp_path: Path) -> None:
    """The file does not grow with every rotation."""
    file = IdentityFile(tmp_path)
    file.create()
    for _ in range(10):
        own = file.rotate()

    assert (8, 8) == (len(own.former), len(former_of(own.public, own.chain())))


def test_rotations_do_not_overtake_each_other(tmp_path: Path) -> None:
    """Of two rotations at once the second follows the first: no key that was used is lost."""
    first = IdentityFile(tmp_path).create()
    with identity._alone(tmp_path / "identity"):
        rotating = Thread(target=IdentityFile(tmp_path).rotate, daemon=True)
        rotating.start()
        rotating.join(0.2)
        held = IdentityFile(tmp_path).load()
    rotating.join(30)
    second = IdentityFile(tmp_path).rotate()

    assert held is not None
    assert first.fingerprint == held.fingerprint
    assert 2 == len(second.former)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Another process's rotation applies to the next signature."""
    ours = IdentityFile(tmp_path)
    before = ours.create()
    after = IdentityFile(tmp_path).rotate()

    found = ours.load()
    assert found is not None
    assert (after.fingerprint, True) == (found.fingerprint, before.fingerprint != found.fingerprint)
    assert verified(after.public, found.sign(b"x"), b"x")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_read_is_not_used(tmp_path: Path, mode: int) -> None:
    """The error says what to do."""
    Homes(tmp_path).show()
    (tmp_path / "identity" / "home.key").chmod(mode)

    with pytest.raises(UnsafeKey, match="chmod 600"):
        Homes(tmp_path).show()


@pytest.mark.parametrize("text", ["", "ed25519 AAAA 1", "rsa x 1", "x\n", "ed25519 é 1"])
def test_a_damaged_key_is_not_used(tmp_path: Path, text: str) -> None:
    """A file with another content is neither used nor replaced."""
    Homes(tmp_path).show()
    path = tmp_path / "identity" / "home.key"
    path.write_text(text)

    with pytest.raises(UnsafeKey, match="not the key of a home"):
        Homes(tmp_path).show()
    assert text == path.read_text()


def test_there_must_be_a_home_and_a_key(tmp_path: Path) -> None:
    """A home with a typo is not created, and no key is not rotated."""
    with pytest.raises(InvalidArgument, match="there is no folder"):
        Homes(tmp_path / "tpyo")
    with pytest.raises(UnknownKey, match="onceward homes show"):
        Homes(tmp_path).rotate()

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "SHA256:", "SHA256:abc", "A" * 43, "SHA256:" + "!" * 43])
def test_a_fingerprint_has_one_form(text: str) -> None:
    """Anything else is refused before another machine is asked."""
    with pytest.raises(InvalidArgument, match="onceward homes show"):
        check_fingerprint(text)


def test_secrets_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cryptography a home shares secrets; its own key says what to install."""
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)

    secret = Keys(tmp_path).create("bob")

    assert secret.startswith("whsec_")
    with pytest.raises(MissingExtra, match=r"onceward\[homes\]"):
        Homes(tmp_path).show()
