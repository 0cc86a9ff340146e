"""What a postbox offers beside sending and receiving: its peers, its dead letters, its health."""

from __future__ import annotations

from collections.abc import Callable

from onceward import dead_letters, peers, views
from onceward.db import Database
from onceward.errors import InvalidMessage
from onceward.frame import Frame
from onceward.names import agent_name
from onceward.options import Options
from onceward.payload import BYTES
from onceward.sender import Sender
from onceward.topics import check_pattern
from onceward.transport import Features
from onceward.tx import Tx


class Peers:
    """Who is reached where. Peers come from here, from the home folder and from transports, never from messages."""

    def __init__(self, db: Database, schemes: Callable[[], dict[str, Features]]) -> None:
        self._db, self._schemes = db, schemes

    def register(self, name: str, url: str) -> None:
        """
        Reach *name* at *url* from now on; its breaker closes.

        Raises:
            InvalidMessage: no transport serves the url's scheme.

        """
        agent_name(name)
        scheme = url.partition(":")[0]
        if scheme not in self._schemes():
            msg = f"no transport for {url!r}: there are {', '.join(sorted(self._schemes()))}"
            raise InvalidMessage(msg)
        self._db.contribute(lambda tx: tx.run(peers.REGISTER, (name, url)))
        self._db.bell.ring("out")

    def forget(self, name: str) -> None:
        """Drop a registered url; mail for the peer waits, and its stream is kept."""
        self._db.contribute(lambda tx: tx.run(peers.FORGET, (name,)))

    def list(self) -> list[views.PeerInfo]:
        """Return all peers by name."""
        return views.peers(self._db)

    def get(self, name: str) -> views.PeerInfo | None:
        """Return one peer, None where it is unknown."""
        return next((peer for peer in self.list() if peer.name == name), None)

    def close_breaker(self, name: str) -> None:
        """Try the peer again at once."""
        self._db.contribute(lambda tx: tx.run(peers.CLOSE_BREAKER, (name,)))
        self._db.bell.ring("out")

    def subscribe(self, name: str, pattern: str) -> None:
        """Let *name* have what is published here under *pattern*."""
        agent_name(name)
        check_pattern(pattern)
        self._db.contribute(lambda tx: tx.run(peers.SUBSCRIBE, (name, pattern)))

    def unsubscribe(self, name: str, pattern: str) -> None:
        """End a subscription; nothing happens where there is none."""
        self._db.contribute(lambda tx: tx.run(peers.UNSUBSCRIBE, (name, pattern)))


class DeadLetters:
    """Messages that ended badly here, of both directions."""

    def __init__(self, db: Database, sender: Sender) -> None:
        self._db, self._sender = db, sender

    def list(self, *, reason: str | None = None, peer: str | None = None, limit: int = 100) -> list[views.DeadLetter]:
        """Return dead letters, oldest first."""
        return views.dead_letters(self._db, reason=reason, peer=peer, limit=limit)

    def get(self, message_id: str) -> views.DeadLetter | None:
        """Return one dead letter, None where there is none of that id."""
        found = views.dead_letters(self._db, message_id=message_id, limit=1)
        return found[0] if found else None

    def replay(self, message_id: str, *, as_new: bool = False) -> str:
        """
        Put a dead letter back on its way, and return its id.

        With its own id a peer that had processed it says so, and it ends acked.
        *as_new* (outgoing ones only) sends its body under a new id.

        Raises:
            InvalidMessage: there is no such dead letter.

        """
        new_id = self._again(message_id) if as_new else None
        if new_id is not None:
            return new_id
        origin = self._db.contribute(lambda tx: dead_letters.replay(tx, message_id))
        self._db.bell.ring("out" if origin == "outbox" else "in")
        return message_id

    def _again(self, message_id: str) -> str:
        letter = self.get(message_id)
        if letter is None or letter.origin != "outbox":
            msg = f"no outgoing dead letter {message_id}: only what we sent can be sent as new"
            raise InvalidMessage(msg)
        frame = Frame.parse(letter.frame)
        options = Options(
            type=frame.type, topic=frame.topic, priority=frame.priority_name, ordering_key=frame.partitionkey,
            correlation_id=frame.correlationid, causation_id=frame.causationid, reply_to=frame.replyto, headers=frame.headers or None,
        )  # fmt: skip
        body = frame.data if frame.datacontenttype != BYTES else raw(frame)
        draft = self._sender.draft(frame.session, frame.recipient, body, options)

        def move(tx: Tx) -> str:
            dead_letters.discard(tx, message_id)
            return self._sender.put(tx, draft)

        return self._db.contribute(move)

    def discard(self, message_id: str) -> bool:
        """Forget a dead letter; say whether there was one."""
        return self._db.contribute(lambda tx: dead_letters.discard(tx, message_id))

    def purge(self, *, older_than: float) -> int:
        """Forget the dead letters that died more than *older_than* seconds ago; return how many."""
        before = self._db.now() - round(older_than * 1000) + 1
        return self._db.contribute(lambda tx: dead_letters.purge(tx, before=before))


def raw(frame: Frame) -> bytes:
    """Return the bytes of a binary body."""
    import base64  # noqa: PLC0415 - binary bodies only

    return base64.b64decode(frame.data_base64 or "")
