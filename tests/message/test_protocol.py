"""Two releases side by side: what one adds, the other ignores, or refuses by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onceward.errors import InvalidMessage, InvalidParcel, Unreachable, UnsupportedVersion
from onceward.message import protocol, wire
from onceward.message.frame import Frame
from onceward.message.parcel import OLDEST, Answer, Receipt, in_version
from onceward.message.protocol import FEATURES, VERSION, Speaks, Spoken, common_version
from onceward.message.wire import Notice, decode_notice, encode_notice
from onceward.testing.builders import build_frame, parcel

PARCEL = replace(
    parcel(
        3, [build_frame("hello", sender="near", recipient="far")], receipts=[Receipt("m", "dead")]
    ),
    stream_position=("their", 7),
)
ANSWER = Answer(verdict="accepted", receipts=(Receipt(PARCEL.last_id, "stored"),))
PONG = Notice(kind="pong", sender="far", recipient="near", at=5)
Change = Callable[[dict[str, Any]], object]

NEWER: dict[str, Change] = {
    "the event": lambda event: event.update(later=[{"a": 1}]),
    "its data": lambda event: event["data"].update(later={"a": {"b": None}}),
    "a frame's entry": lambda event: event["data"]["frames"][0].update(later=True),
    "a receipt": lambda event: event["data"]["receipts"][0].update(later="x"),
    "a position": lambda event: event["data"]["stream_position"].update(later=0),
}


def parcel_with(change: Change) -> bytes:
    """Return the bytes of a parcel whose event was changed."""
    head, _, frames = wire.encode_parcel(PARCEL).partition(b"\n")
    event = json.loads(head[1:])
    change(event)
    return b"[" + json.dumps(event).encode() + b"\n" + frames


def answer_with(change: Change) -> bytes:
    """Return the bytes of an answer whose event was changed."""
    event = json.loads(wire.encode_answer(ANSWER, PARCEL))
    change(event)
    return json.dumps(event).encode()


def requires(**named: str) -> Change:
    """Return a change that requires members by the releases that brought them."""
    return lambda event: event["data"].update(requires=named)


def version(number: int) -> Change:
    """Return a change that writes another wire version."""
    return lambda event: event["data"].update(version=number)


@pytest.mark.parametrize("change", NEWER.values(), ids=NEWER)
def test_a_member_that_a_parcel_s_reader_does_not_know_is_ignored(change: Change) -> None:
    """A newer sender may add members at every level; the parcel means the same without them."""
    assert PARCEL == wire.decode_parcel(parcel_with(change))


@pytest.mark.parametrize("name", ["the event", "its data", "a receipt"])
def test_a_member_that_an_answer_s_reader_does_not_know_is_ignored(name: str) -> None:
    """A newer recipient may add members to its answer."""
    assert ANSWER == wire.decode_answer(answer_with(NEWER[name]), PARCEL)


def test_a_key_comes_once_beside_members_that_are_not_known() -> None:
    """Readers would take different values of a repeated key, in a member that one ignores, too."""
    body = wire.encode_parcel(PARCEL).replace(b'"epoch":', b'"later":1,"later":2,"epoch":', 1)

    with pytest.raises(InvalidParcel, match="comes twice"):
        wire.decode_parcel(body)


def test_a_required_member_that_is_not_known_is_refused_by_name() -> None:
    """The error names the member, the release that reads it, and both ways to catch it."""
    changed = requires(splitting="0.7.0", greeting="0.1.0")

    for read in (
        lambda: wire.decode_parcel(parcel_with(changed)),
        lambda: wire.decode_answer(answer_with(changed), PARCEL),
    ):
        with pytest.raises(
            UnsupportedVersion, match=r"needs 'splitting' of onceward '0\.7\.0'"
        ) as told:
            read()
        assert "0.7.0" == told.value.needs
        assert isinstance(told.value, Unreachable)
        assert told.value.retryable


def test_a_required_member_that_is_known_is_read() -> None:
    """A writer may require what this release has."""
    known = dict.fromkeys(FEATURES, "0.1.0")

    assert PARCEL == wire.decode_parcel(parcel_with(requires(**known)))
    assert ANSWER == wire.decode_answer(answer_with(requires(**known)), PARCEL)


@pytest.mark.parametrize("number", [VERSION + 1, OLDEST - 1])
def test_another_wire_version_is_refused_by_its_number(number: int) -> None:
    """It is no damage: the error says which versions are spoken."""
    with pytest.raises(UnsupportedVersion, match=f"needs wire version {number}") as told:
        wire.decode_parcel(parcel_with(version(number)))

    assert f"wire version {number}" == told.value.needs
    assert f"speaks wire versions {OLDEST} to {VERSION}" in str(told.value)


def test_a_newer_layout_is_told_from_damage() -> None:
    """Of a wire version that is not spoken only its number and what it requires are read."""

    def rewrite(event: dict[str, Any]) -> None:
        event["data"] = {"version": 9, "from": "near", "requires": {"wire 9": "3.0.0"}}

    with pytest.raises(UnsupportedVersion) as told:
        wire.decode_parcel(parcel_with(rewrite))

    assert "3.0.0" == told.value.needs


@pytest.mark.parametrize(
    "data",
    [{}, [], {"version": "2"}, {"version": 1, "requires": []}, {"version": 2, "requires": "x"}],
    ids=repr,
)
def test_damage_is_no_newer_version(data: object) -> None:
    """What is no event of any version is an invalid parcel alone."""
    with pytest.raises(InvalidParcel) as told:
        wire.decode_parcel(parcel_with(lambda event: event.update(data=data)))

    assert InvalidParcel is type(told.value)


def test_an_answer_has_the_version_of_its_parcel(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its reader can read it; that its writer reads a newer version stands beside it."""
    same = json.loads(wire.encode_answer(ANSWER, PARCEL))["data"]
    monkeypatch.setattr(wire, "VERSION", 2)
    newer = wire.encode_answer(ANSWER, PARCEL)

    assert (OLDEST, None) == (same["version"], same.get("newest"))
    assert OLDEST == json.loads(newer)["data"]["version"]
    assert 2 == wire.decode_answer(newer, PARCEL).newest


def test_a_parcel_s_version_does_not_change_what_it_says() -> None:
    """A parcel in another version equals the one that was packed."""
    assert PARCEL is in_version(PARCEL, OLDEST)
    assert PARCEL == in_version(PARCEL, 2)
    assert 2 == in_version(PARCEL, 2).version


def test_a_frame_keeps_attributes_that_are_not_known() -> None:
    """They are passed on as they came; another version of CloudEvents is refused."""
    text = PARCEL.frames[0].text

    assert {"later": "x"} == Frame.parse(text.replace('{"', '{"later":"x","', 1)).headers
    with pytest.raises(InvalidMessage):
        Frame.parse(text.replace('"specversion":"1.0"', '"specversion":"2.0"'))


# -- notices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pong", "collect", "unread"])
def test_a_notice_states_what_its_writer_speaks(kind: wire.NoticeKind) -> None:
    """Release, wire versions, codecs and features arrive."""
    found = decode_notice(encode_notice(replace(PONG, kind=kind)))

    assert Speaks.here() == found.speaks
    assert (VERSION, FEATURES) == (Speaks.here().newest, Speaks.here().features)
    assert Speaks.here().release


def test_a_notice_of_another_release_is_read() -> None:
    """Members that are not known are ignored; a statement may be missing."""
    event = json.loads(encode_notice(PONG))
    event["data"]["speaks"]["later"] = event["data"]["later"] = event["later"] = 1

    assert Speaks.here() == decode_notice(json.dumps(event).encode()).speaks
    del event["data"]["speaks"]
    assert PONG == decode_notice(json.dumps(event).encode())
    event["data"]["version"] = 7
    with pytest.raises(UnsupportedVersion, match="the notice needs wire version 7"):
        decode_notice(json.dumps(event).encode())


# -- agreeing --------------------------------------------------------------------------------------


@pytest.fixture
def middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this side speak the wire versions 2 and 3."""
    monkeypatch.setattr(protocol, "OLDEST", 2)
    monkeypatch.setattr(protocol, "VERSION", 3)


@pytest.mark.usefixtures("middle")
@pytest.mark.parametrize(
    ("theirs", "expected"), [((1, 2), 2), ((2, 3), 3), ((3, 4), 3), ((1, 9), 3), ((2, 2), 2)]
)
def test_the_lower_of_both_is_spoken(theirs: tuple[int, int], expected: int) -> None:
    """Of the versions that both sides speak, the newest one."""
    oldest, newest = theirs

    assert expected == common_version(Speaks(oldest=oldest, newest=newest), "far")


@pytest.mark.usefixtures("middle")
@pytest.mark.parametrize(
    ("theirs", "older", "needs"),
    [((1, 1), "far's onceward", "wire version 2"), ((4, 5), "this onceward", "wire version 4")],
)
def test_no_common_version_names_the_side_to_upgrade(
    theirs: tuple[int, int], older: str, needs: str
) -> None:
    """The error says which side is too old, and what it must speak."""
    oldest, newest = theirs

    with pytest.raises(UnsupportedVersion, match=f"upgrade {older} .* {needs}") as told:
        common_version(Speaks(oldest=oldest, newest=newest), "far")
    assert needs == told.value.needs


@pytest.mark.usefixtures("middle")
def test_a_peer_is_believed_until_it_says_otherwise() -> None:
    """Before its first statement the oldest version is written; a downgrade is heard, too."""
    spoken = Spoken()

    assert 2 == spoken.version("far")
    spoken.hear("far", None, newest=9)
    assert 3 == spoken.version("far")
    spoken.hear("far", None, newest=0)  # an answer in the newest version that it reads
    assert 3 == spoken.version("far")
    spoken.hear("far", Speaks(release="0.1.0", oldest=1, newest=2))
    assert (2, 2) == (spoken.version("far"), spoken.version("other"))


@pytest.mark.usefixtures("middle")
def test_a_peer_without_a_common_version_is_asked_again() -> None:
    """It may have been upgraded meanwhile: one push fails, and the next one asks."""
    spoken = Spoken()
    spoken.hear("far", Speaks(oldest=1, newest=1))

    with pytest.raises(UnsupportedVersion):
        spoken.version("far")
    assert 2 == spoken.version("far")
