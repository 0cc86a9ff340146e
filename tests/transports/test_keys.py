"""Keys of a home: their files, their rotation, and signatures after Standard Webhooks."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from onceward.errors import InvalidArgument, OncewardError, UnknownKey, UnsafeKey
from onceward.transports.network.keys import (
    Keys,
    decode_secret,
    new_secret,
    sign,
    sign_all,
    verify,
)
from onceward.transports.network.nats_keys import create_seed

NOW = 1_767_225_600


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return the keys of a home that has none yet."""
    return Keys(tmp_path)


def _made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_a_new_key_is_a_secret_that_only_its_owner_reads(keys: Keys, tmp_path: Path) -> None:
    """A key is one line of Standard Webhooks' form, in a file of mode 0600."""
    text = keys.create("bob")

    path = tmp_path / "keys" / "bob"
    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    assert f"{text}\n" == path.read_text(encoding="ascii")
    assert (decode_secret(text),) == keys.secrets("bob")
    assert ["bob"] == [found.name for found in path.parent.iterdir()]


def test_no_key_says_which_and_how_to_make_one(keys: Keys) -> None:
    """A missing key names its peer and the command that makes it."""
    with pytest.raises(UnknownKey, match="onceward keys new bob") as caught:
        keys.secrets("bob")

    assert "bob" == caught.value.peer
    assert not keys.has("bob")


def test_a_key_is_not_made_twice(keys: Keys) -> None:
    """A second ``create`` would break the pair: it is refused, and the key stays."""
    keys.create("bob")
    before = keys.secrets("bob")

    with pytest.raises(InvalidArgument, match="onceward keys rotate bob"):
        keys.create("bob")

    assert before == keys.secrets("bob")


def test_the_other_side_adds_the_secret(tmp_path: Path) -> None:
    """A secret that is made at one home and added at the other is the same for both."""
    near, far = Keys(_made(tmp_path, "near")), Keys(_made(tmp_path, "far"))

    far.add("alice", f" {near.create('bob')}\n")

    assert near.secrets("bob") == far.secrets("alice")


def test_a_rotation_leaves_no_gap(tmp_path: Path) -> None:
    """While the peer has only the old secret, what either side signs is proved by the other."""
    near, far = Keys(_made(tmp_path, "near")), Keys(_made(tmp_path, "far"))
    far.add("alice", near.create("bob"))

    def proved() -> tuple[bool, bool]:
        ours, theirs = near.secrets("bob"), far.secrets("alice")
        return (
            verify(theirs, "1", NOW, b"x", sign_all(ours, "1", NOW, b"x")),
            verify(ours, "1", NOW, b"x", sign_all(theirs, "1", NOW, b"x")),
        )

    secret = near.rotate("bob")
    assert (True, True) == proved()
    near.retire("bob")
    assert (False, False) == proved()
    far.add("alice", secret)
    assert (True, True) == proved()
    far.retire("alice")
    assert near.secrets("bob") == far.secrets("alice")


def test_a_rotation_keeps_two_secrets_at_most(keys: Keys) -> None:
    """The newest secret stands first, the one before second; older ones are forgotten."""
    keys.create("bob")
    second, third = keys.rotate("bob"), keys.rotate("bob")

    assert (decode_secret(third), decode_secret(second)) == keys.secrets("bob")


def test_the_same_secret_added_again_changes_nothing(keys: Keys) -> None:
    """Adding is safe to repeat."""
    keys.create("bob")
    secret = keys.rotate("bob")
    before = keys.secrets("bob")

    keys.add("bob", secret)

    assert before == keys.secrets("bob")


def test_only_a_key_can_be_rotated_retired_or_dropped(keys: Keys) -> None:
    """A missing key is an error of each, and no file is made."""
    for change in (keys.rotate, keys.retire, keys.remove):
        with pytest.raises(UnknownKey):
            change("bob")

    assert [] == keys.list()


def test_a_dropped_key_is_gone_at_once(keys: Keys, tmp_path: Path) -> None:
    """Another process's change is noticed at the next use, without a restart."""
    keys.create("bob")
    keys.secrets("bob")

    Keys(tmp_path).remove("bob")

    assert not keys.has("bob")


def test_a_changed_file_is_read_again(keys: Keys, tmp_path: Path) -> None:
    """A rotation by another process is in force at the next use."""
    keys.create("bob")
    keys.secrets("bob")

    secret = Keys(tmp_path).rotate("bob")

    assert decode_secret(secret) == keys.secrets("bob")[0]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o777])
def test_a_key_that_others_read_is_not_used(keys: Keys, tmp_path: Path, mode: int) -> None:
    """A file of another mode than 0600 is refused with the command that mends it, also later on."""
    keys.create("bob")
    keys.secrets("bob")
    (tmp_path / "keys" / "bob").chmod(mode)

    with pytest.raises(UnsafeKey, match="chmod 600"):
        keys.secrets("bob")
    for change in (keys.rotate, keys.retire, lambda peer: keys.add(peer, new_secret())):
        with pytest.raises(UnsafeKey):
            change("bob")

    assert [False] == [key.mode_ok for key in keys.list()]


def test_a_folder_that_others_write_is_not_used(keys: Keys, tmp_path: Path) -> None:
    """Others who may write the folder could replace a key, so none of it is used."""
    keys.create("bob")
    (tmp_path / "keys").chmod(0o777)

    with pytest.raises(UnsafeKey, match="chmod 700"):
        keys.secrets("bob")

    assert [False] == [key.mode_ok for key in keys.list()]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "password\n",
        "whsec_\n",
        "whsec_c2hvcnQ=\n",
        "whsec_!!!\n",
        "whsec_" + "A" * 400,
        "ä",
    ],
)
def test_another_content_is_not_used(keys: Keys, tmp_path: Path, text: str) -> None:
    """A file that holds no secret is refused; the error does not repeat its content."""
    keys.create("bob")
    (tmp_path / "keys" / "bob").write_text(text, encoding="utf-8")

    with pytest.raises(UnsafeKey, match="add the key again") as caught:
        keys.secrets("bob")

    assert not text.strip() or text.strip() not in str(caught.value)


@pytest.mark.parametrize("peer", ["", "..", "../x", "a/b", ".hidden", "all", "a\0b", "a\n", "ä"])
def test_a_name_that_is_none_reaches_no_file(keys: Keys, tmp_path: Path, peer: str) -> None:
    """A name that no agent can have is refused before a file is looked for."""
    for use in (keys.secrets, keys.create, keys.rotate, keys.remove):
        with pytest.raises(OncewardError):
            use(peer)

    assert [] == list(tmp_path.iterdir())


def test_keys_are_listed_with_age_mode_and_count(keys: Keys, tmp_path: Path) -> None:
    """The list tells all but the secrets, and files that are not keys, too."""
    keys.create("bob")
    keys.create("carl")
    keys.rotate("carl")
    written = (tmp_path / "keys" / "bob").stat().st_mtime_ns // 1_000_000

    assert [("bob", True, 1), ("carl", True, 2)] == [
        (key.peer, key.mode_ok, key.count) for key in keys.list()
    ]
    assert written == keys.list()[0].created_at


# -- signatures --------------------------------------------------------------------------------


@given(st.text("abcdef0123456789-", min_size=1), st.text(max_size=50))
def test_signatures_are_those_of_standard_webhooks(id: str, text: str) -> None:
    """The reference implementation makes the same signature, and takes ours."""
    secret = new_secret()
    oracle, body = Webhook(secret), text.encode()
    at = datetime.now(UTC).replace(microsecond=0)
    timestamp = int(at.timestamp())

    signature = sign(decode_secret(secret), id, timestamp, body)

    assert oracle.sign(id, at, text) == signature
    headers = {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
    }
    oracle.verify(text, headers, json_parse=False)


def test_the_reference_refuses_what_we_refuse() -> None:
    """Another secret, id, time or body is proved by neither implementation."""
    secret, other = new_secret(), new_secret()
    mine = decode_secret(secret)
    timestamp = int(datetime.now(UTC).timestamp())
    good = sign(mine, "1", timestamp, b"{}")

    assert verify([mine], "1", timestamp, b"{}", good)
    for key, name, at, body in (
        (decode_secret(other), "1", timestamp, b"{}"),
        (mine, "2", timestamp, b"{}"),
        (mine, "1", timestamp + 1, b"{}"),
        (mine, "1", timestamp, b"{ }"),
    ):
        assert not verify([key], name, at, body, good)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(
            "{}",
            {
                "webhook-id": "1",
                "webhook-timestamp": str(timestamp),
                "webhook-signature": good,
            },
        )


@pytest.mark.parametrize(
    "signature",
    ["", " ", "v1,", "v1", "v1,!!!", "v1,ä", "v2,{}", "v1a,{}", "{}", " , , "],
)
def test_a_malformed_signature_proves_nothing(signature: str) -> None:
    """Text that is not a signature of version 1 is refused without an error."""
    good = sign(b"k" * 24, "1", NOW, b"x").removeprefix("v1,")

    assert not verify([b"k" * 24], "1", NOW, b"x", signature.replace("{}", good))


def test_the_ninth_signature_is_not_looked_at() -> None:
    """A header with many signatures costs as much as one with eight."""
    good = sign(b"k" * 24, "1", NOW, b"x")

    assert verify([b"k" * 24], "1", NOW, b"x", "v1,eA== " * 7 + good)
    assert not verify([b"k" * 24], "1", NOW, b"x", "v1,eA== " * 8 + good)


def test_a_home_is_not_made_for_a_key(tmp_path: Path) -> None:
    """A key of a home that does not exist is a typo: nothing is made."""
    for change in (
        Keys(tmp_path / "tpyo").create,
        lambda p: Keys(tmp_path / "tpyo").add(p, new_secret()),
    ):
        with pytest.raises(InvalidArgument, match="there is no folder"):
            change("bob")

    assert [] == list(tmp_path.iterdir())


def test_a_crash_leaves_the_key_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before the new file is synced leaves the old one; so does a full disk."""
    keys = Keys(tmp_path)
    keys.create("bob")
    before = keys.secrets("bob")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        keys.rotate("bob")

    assert before == Keys(tmp_path).secrets("bob")
    assert ["bob"] == [found.name for found in (tmp_path / "keys").iterdir()]


def test_a_seed_is_written_like_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret for a NATS server is there whole and synced, or not at all."""
    synced = list[int]()
    monkeypatch.setattr("os.fsync", synced.append)
    create_seed(tmp_path, "shop")
    whole = len(synced)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        create_seed(tmp_path, "billing")

    assert whole > 0
    assert ["shop.nk"] == [found.name for found in (tmp_path / "nats").iterdir()]
