"""Options that several commands share, each with its help text."""

from __future__ import annotations

from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward.message.vocabulary import PRIORITIES
from onceward.ops.cli.durations import MaybeRate, MaybeSpan

Quiet: Final = Parameter(negative=(), show_default=False)
"""An option without a value."""
DASH: Final = "A dash reads it from stdin; so does no argument in a pipe."
PRIORITY: Final = f"{', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}."


def said(text: str, **how: Any) -> Parameter:
    """Return a parameter with a help text."""
    return Parameter(help=text, **how)


Body = Annotated[str | None, said(f"JSON, or plain text. {DASH}", allow_leading_hyphen=True)]
Ids = Annotated[str, Parameter(allow_leading_hyphen=True)]
Pattern = Annotated[str, said("Topic pattern: * is one segment, a trailing # any number.")]
Session = Annotated[str, said("The session whose queue it is.")]
Limit = Annotated[int, said("Print at most this many.")]
Number = Annotated[int, said("How many.", name=("-n", "--number"))]
OfType = Annotated[str | None, said("Only messages of this type.")]
OfTopics = Annotated[
    list[str] | None,
    said("Only this topic or topics of this pattern; may be repeated.", negative=()),
]
OfTags = Annotated[
    list[str] | None,
    said(
        "Only messages with this tag; repeated: with any of them.",
        name="--tag",
        negative=(),
    ),
]
Several = Annotated[list[str] | None, Parameter(negative=())]
Rate = Annotated[MaybeRate, said("Messages a second, or 10/m.")]
Burst = Annotated[float | None, said("How many at once; default: the count of 10/m.")]
Wait = Annotated[MaybeSpan, said("Wait this long for a message.")]
