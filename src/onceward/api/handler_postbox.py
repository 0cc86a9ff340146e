"""Let a handler read its postbox: what it may ask, and what to use in place of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack

from typing_extensions import TypeForm, TypeVar

from onceward.api.session import Session
from onceward.core.rows import outbox
from onceward.core.run.async_face import AsyncFace, OffLoop, awaitable
from onceward.core.send.block import Bindings
from onceward.errors import InvalidArgument
from onceward.message.arguments import checked
from onceward.message.record import HistoryFilters, MessageRecord, Page, Status, Ticket
from onceward.message.vocabulary import SentState

if TYPE_CHECKING:
    from onceward.features.history.journey import Journey

T = TypeVar("T")
USE: Final = {
    **dict.fromkeys(("send", "send_many"), "ctx.send"),
    **{name: f"ctx.{name}" for name in ("ask", "broadcast", "gather", "publish", "request")},
    **dict.fromkeys(("receive", "receive_one", "receive_each"), "ctx.wait"),
    "begin": "ctx.tx",
    "groups": "ctx.group",
    "session": "the option session of ctx.tx.send",
    "follow": "ctx.postbox.progress_of",
}
"""By name of what would write or wait: what a handler uses in place of it."""


class HandlerPostbox:
    """
    The postbox of a handler, to read: ``ctx.postbox``.

    It sees what is committed, not what the call has written; ``ctx.query`` sees both. No call takes
    the lock of the file, writes or waits. A call that is repeated may read something else: what
    decides between steps belongs into a step.
    """

    def __init__(self, box: Session, free: Callable[[], None]) -> None:
        self._box, self._free = box, free

    @property
    def agent(self) -> str:
        """Return the agent whose file it is."""
        return self._box._db.agent

    @checked
    def state(self, message_id: str) -> SentState:
        """Return the state of a message that this agent sent; see ``Postbox.state``."""
        return outbox.state(self._box._db, message_id)

    def status(self, ticket: Ticket | str, *, depth: int = 1) -> Status:
        """
        Return how far a message is, as it is now; see ``Postbox.status``.

        Raises:
            InvalidArgument: no such message is known here; or this call has already written, and
                would hold the lock of the file while it reads that of the recipient.

        """
        self._free()
        return self._box.status(ticket, depth=depth)

    def result(self, ticket: Ticket | str, *, reply: TypeForm[T]) -> T:
        """
        Return the result of a message that has ended; see ``Postbox.result``.

        Raises:
            AnswerTimeout: it has not ended; ``ctx.gather`` waits for the replies of requests.
            RequestFailed: it ended without a result.
            InvalidArgument: as for ``status``.

        """
        self._free()
        return self._box.result(ticket, reply=reply)

    def progress_of(self, ticket: Ticket | str) -> Any:
        """Return the last progress of a message; see ``Postbox.progress_of`` and ``status``."""
        self._free()
        return self._box.progress_of(ticket)

    def query(self, sql: str, bindings: Bindings = None) -> list[Any]:
        """Run a SELECT on what is committed; see ``Postbox.query``."""
        return self._box._db.query(sql, bindings)

    @checked
    def history(self, **filters: Unpack[HistoryFilters]) -> Page:
        """Return past messages of all sessions, newest first; see ``Postbox.history``."""
        from onceward.features.history import history  # noqa: PLC0415 - rarely needed

        return history.find(self._box._db, **filters)

    def thread(self, message_id: str) -> list[MessageRecord]:
        """Return the messages of a conversation; see ``Postbox.thread``."""
        return self._box.thread(message_id)

    @checked
    def search(self, text: str, *, limit: int = 100, offset: int = 0) -> Page:
        """Return past messages with the words of *text*; see ``Postbox.search``."""
        from onceward.features.history import full_text  # noqa: PLC0415 - rarely needed

        return full_text.words(self._box._db, text, limit=limit, offset=offset)

    @checked
    def journey(self, message_id: str) -> Journey | None:
        """Return everything that the file stores about a message; see ``Postbox.journey``."""
        from onceward.features.history import journey  # noqa: PLC0415 - rarely needed

        return journey.find(self._box._db, message_id)

    def _face(self, off_loop: OffLoop) -> AsyncHandlerPostbox:
        return AsyncHandlerPostbox(self, off_loop)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what would write or wait: raise InvalidArgument that says what to use."""
        _refuse(self._box, name)


class AsyncHandlerPostbox(AsyncFace[HandlerPostbox]):
    """The postbox of an ``async def`` handler, to read; see ``HandlerPostbox``."""

    @property
    def agent(self) -> str:
        """Return the agent whose file it is."""
        return self._plain.agent

    state = awaitable(HandlerPostbox.state)
    status = awaitable(HandlerPostbox.status)
    progress_of = awaitable(HandlerPostbox.progress_of)
    query = awaitable(HandlerPostbox.query)
    history = awaitable(HandlerPostbox.history)
    thread = awaitable(HandlerPostbox.thread)
    search = awaitable(HandlerPostbox.search)
    journey = awaitable(HandlerPostbox.journey)

    async def result(self, ticket: Ticket | str, *, reply: TypeForm[T]) -> T:
        """Return the result of a message that has ended; see ``HandlerPostbox.result``."""
        plain = self._plain
        return await self._off_loop.call(lambda: plain.result(ticket, reply=reply))

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what would write or wait: raise InvalidArgument that says what to use."""
        _refuse(self._plain._box, name)


def _refuse(box: Session, name: str) -> NoReturn:
    if name.startswith("_") or not hasattr(type(box), name):
        raise AttributeError(f"the postbox of a handler has no attribute {name!r}")
    use = USE.get(name, "a postbox outside of the handler")
    raise InvalidArgument(f"ctx.postbox only reads: use {use} in place of {name}")
