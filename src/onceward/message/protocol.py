"""
State the wire versions and features of this onceward, and agree on a version with each peer.

A sender writes the oldest version that this onceward speaks until the peer has said that it reads a
newer one; then the lower of both. An answer has the version of its parcel, and says if its writer
reads a newer one. A reader ignores members that it does not know, unless the writer requires them:
``requires`` names each and the release that brought it, in every wire version. The last release is
always spoken, so machines are upgraded one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, Self, get_args

from onceward.errors import UnsupportedVersion
from onceward.message.names import quoted
from onceward.message.parcel import OLDEST

VERSION: Final = 1
"""The newest wire version that this onceward reads and writes."""
CODECS: Final = ("application/cloudevents-batch+json",)
"""Media types of the parcels that this onceward reads."""
Feature = Literal["greeting", "takeover"]
"""Members of parcels that a writer may require of this onceward."""
FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)


@lru_cache(maxsize=1)
def release() -> str:
    """Return the release of this onceward."""
    from importlib.metadata import version  # noqa: PLC0415 - it loads the library for e-mail

    return version("onceward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaks:
    """The wire versions, codecs and features of one side."""

    release: str = ""
    """Its release of onceward; empty if it did not say."""
    oldest: int = OLDEST
    newest: int = OLDEST
    codecs: tuple[str, ...] = CODECS
    features: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Self:
        """Return what this onceward speaks."""
        return cls(
            release=release(),
            oldest=OLDEST,
            newest=VERSION,
            features=FEATURES,
        )


class Spoken:
    """The last statement of each peer to this process."""

    def __init__(self) -> None:
        self._said: dict[str, Speaks] = {}

    def hear(self, peer: str, speaks: Speaks | None, *, newest: int = 0) -> None:
        """Remember the statement of a peer, or the newest version that it named in an answer."""
        if newest:
            speaks = replace(self._said.get(peer, Speaks()), newest=newest)
        if speaks is not None:
            self._said[peer] = speaks

    def said(self, peer: str) -> Speaks | None:
        """Return the last statement of a peer; None before the first one."""
        return self._said.get(peer)

    def version(self, peer: str) -> int:
        """
        Return the version to write to a peer.

        Raises:
            UnsupportedVersion: there was none; the next push asks again, for it may be upgraded.

        """
        said = self._said.get(peer)
        if said is None:
            return OLDEST
        try:
            return common_version(said, peer)
        except UnsupportedVersion:
            self._said.pop(peer, None)
            raise


def common_version(theirs: Speaks, peer: str) -> int:
    """
    Return the newest wire version that both sides speak.

    Raises:
        UnsupportedVersion: there is none; the error names the side to upgrade.

    """
    found = min(VERSION, theirs.newest)
    if max(OLDEST, theirs.oldest) <= found:
        return found
    behind = f"{peer}'s onceward" if theirs.newest < OLDEST else "this onceward"
    needs = f"wire version {max(OLDEST, theirs.oldest)}"
    raise UnsupportedVersion(
        f"{peer} speaks wire versions {theirs.oldest} to {theirs.newest} (onceward "
        f"{theirs.release or 'of an unknown release'}), here {OLDEST} to {VERSION} are spoken: "
        f"upgrade {behind} to a release that speaks {needs}",
        needs=needs,
    )


def refuse_newer(what: str, data: Mapping[str, Any]) -> None:
    """
    Raise UnsupportedVersion if the data of an event has members that this onceward cannot read.

    It looks at ``version`` and ``requires`` alone, which have one form in every wire version.
    """
    number, required = data.get("version"), data.get("requires") or {}
    missing = {
        str(name): str(since)[:64] for name, since in required.items() if name not in FEATURES
    }
    lacks = [f"{quoted(name)} of onceward {quoted(missing[name])}" for name in sorted(missing)[:3]]
    if not (isinstance(number, int) and OLDEST <= number <= VERSION):
        lacks = [f"wire version {quoted(number)}", *lacks]
    if not lacks:
        return
    raise UnsupportedVersion(
        f"the {what} needs {' and '.join(lacks)}; onceward {release()} here speaks wire "
        f"versions {OLDEST} to {VERSION}: upgrade the older one",
        needs=", ".join(sorted(set(missing.values()))) or lacks[0],
    )
