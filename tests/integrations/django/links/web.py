"""The web as the tasks of bookmarks see it: answers that a test chooses, and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

answers: dict[str, Any] = {}
"""The answer, or a function of the address, by what is asked for."""
asked: list[tuple[str, Any]] = []
"""What was asked for, and of which address."""


def ask(what: str, url: Any) -> Any:
    """Return the answer."""
    asked.append((what, url))
    answer: Any = answers[what]
    return answer(url) if isinstance(answer, Callable) else answer  # type: ignore[arg-type]
