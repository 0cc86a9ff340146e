"""Read a body that a person typed, in a shell or in a form of the inspector."""

from __future__ import annotations

import json
from typing import Any, Final

from onceward.errors import InvalidMessage
from onceward.message.frame import unique

HOW: Final = 'write {"name": "value"}, or plain text as a JSON string, "…"'


def typed_body(text: str) -> Any:
    """
    Return JSON as its value, and any other text as it is.

    Raises:
        InvalidMessage: the text begins like JSON and is not valid, or repeats a key.

    """
    try:
        return json.loads(text, object_pairs_hook=unique)
    except InvalidMessage as error:
        raise InvalidMessage(f"the body: {error}") from error
    except ValueError as error:
        if text.lstrip().startswith(("{", "[", '"')):
            msg = f"the body looks like JSON, but is not valid: {error}: {HOW}"
            raise InvalidMessage(msg) from error
        return text
