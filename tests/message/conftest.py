"""What the tests of words share: a frame's text around any body, as a send would write it."""

from collections.abc import Callable

import pytest

from onceward.message.body import encode
from onceward.message.options import FrameHeaders, frame_prefix, render_head

Write = Callable[..., str]


@pytest.fixture(scope="session")
def write() -> Write:
    """Return the call that writes a frame from *a* to *b* as ``send`` does."""

    def composed(
        body: object = None, *, created_at: int = 1_767_225_600_123, **attributes: object
    ) -> str:
        payload = encode(body)
        envelope = FrameHeaders(
            **{"sender": "a", "recipient": "b", "type": payload.type, "media": payload.media}  # type: ignore[arg-type]
            | attributes
        )
        head = render_head(frame_prefix(envelope), "0190-1", created_at)
        return f"{head}{payload.text}}}"

    return composed
