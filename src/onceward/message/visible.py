"""Show characters that a reader does not see, so that no text hides in a text."""

from __future__ import annotations

import re
from typing import Final

JOINERS: Final = "[\u200c\u200d]"
"""Zero-width joiners: Persian, Indic scripts and emoji need them, ASCII does not."""
HIDDEN: Final = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
    f"|(?<![^\0-\x7f]){JOINERS}|{JOINERS}(?![^\0-\x7f])"
)
"""Controls, direction marks, zero widths, tags and the supplementary variation selectors."""


def visible(text: str) -> str:
    r"""Return *text* with each hidden character as ``\u{…}``; others stay as they are."""
    return HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)
