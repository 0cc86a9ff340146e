"""What a postbox does in its default session: the session's own verbs under the postbox's name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeVar, Unpack

from onceward.api.session import Session
from onceward.model.send_options import PublishOptions, SendOptions
from onceward.runtime.transaction import Transaction
from onceward.store.requests import Ticket

T = TypeVar("T")


class Verbs:
    """Sends, publishes and asks in the default session."""

    _default: Session

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a transaction in the default session; see ``Session.begin``."""
        return self._default.begin()

    def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Send in the default session; see ``Session.send``."""
        return self._default.send(to, body, **options)

    def send_many(
        self, messages: Iterable[tuple[str, object]], **options: Unpack[SendOptions]
    ) -> list[str]:
        """Send many in the default session; see ``Session.send_many``."""
        return self._default.send_many(messages, **options)

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Publish in the default session; see ``Session.publish``."""
        return self._default.publish(topic, body, **options)

    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: type[T],
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> T:
        """Ask in the default session; see ``Session.ask``."""
        return self._default.ask(to, body, reply=reply, timeout=timeout, **options)

    def request(
        self, to: str, body: object, *, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> Ticket:
        """Request in the default session; see ``Session.request``."""
        return self._default.request(to, body, timeout=timeout, **options)

    def result(self, ticket: Ticket | str, *, reply: type[T], timeout: float = 0.0) -> T:
        """Return the reply to a ticket of any session; see ``Session.result``."""
        return self._default.result(ticket, reply=reply, timeout=timeout)
