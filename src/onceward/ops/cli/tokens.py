"""Read the token of a server from the environment."""

from __future__ import annotations

import os
from typing import Final

from onceward.ops.cli.exit_codes import Usage

SHORTEST: Final = 16
"""Characters; 96 bits in base64."""


def given_token(variable: str) -> str | None:
    """Return the token of a variable, None if it is not set; raise Usage for a weak one."""
    token = os.environ.get(variable)
    if token is not None and (len(token) < SHORTEST or not token.isascii()):
        raise Usage(f"{variable} must have {SHORTEST} ASCII characters or more")
    return token
