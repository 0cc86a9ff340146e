"""Define the streams of output that a running handler writes; features store what is appended."""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.run.async_face import AsyncFace, awaitable


class OutputStream:
    """
    Accepts the output of a running handler, for readers that follow it with ``box.follow``.

    Chunks are committed in batches: those of ``stream_batch_for`` (0.1 s) or
    ``stream_batch_bytes`` (16 KiB) together, in one commit, and the rest with the end of the
    call. A worker that has lost its message adds nothing.
    """

    def __init__(
        self, name: str, add: Callable[[str, object], bool], flush: Callable[[], None]
    ) -> None:
        self.name = name
        """Name of the stream within its message."""
        self._add, self._flush = add, flush

    def append(self, chunk: object) -> None:
        """
        Append text, bytes, or a value that can be written as JSON.

        Raises:
            StreamLimit: the output of this message has reached its limit.
            InvalidMessage: the chunk cannot be written as JSON.
            LeaseLost: another worker handles the message, or its handler has ended.

        """
        if self._add(self.name, chunk):
            self._flush()

    def flush(self) -> None:
        """Commit what was appended so far."""
        self._flush()


class AsyncOutputStream(AsyncFace[OutputStream]):
    """Accepts the output of a running coroutine; see ``OutputStream``."""

    @property
    def name(self) -> str:
        """Return the name of the stream within its message."""
        return self._plain.name

    async def append(self, chunk: object) -> None:
        """Append text, bytes, or a JSON value; see ``OutputStream.append``."""
        if self._plain._add(self.name, chunk):
            await self.flush()

    flush = awaitable(OutputStream.flush)
