"""Translate error texts from Python to the shell."""

from __future__ import annotations

import re
from typing import Final

from onceward.message.names import PREFIX

PHRASES: Final = {
    "call ``file.resume()``": "run onceward resume",
    "file.resume() first": "run onceward resume first",
    "after resume()": "after onceward resume",
    "open the postbox once with search=True": "run this once with ONCEWARD_SEARCH=1",
    "open this one with hold_unknown=True": "set ONCEWARD_HOLD_UNKNOWN=1",
    "ask ``postbox.state(id)``": "run onceward show ID",
    "ask state(id)": "run onceward show ID",
    "ask result() again later": "look for the reply in onceward history",
    "ask ``result(ticket)`` again later": "look for the reply in onceward history",
    "a Postbox that is opened with agent=NAME creates it": "onceward init NAME creates it",
    "open it with agent=NAME, or create it with onceward init NAME": "run onceward init NAME",
    "at least a millisecond, or None for no expiry": "at least a millisecond, or --forever",
    "use ensure, or another name": "omit --exclusive, or choose another name",
    "channels.ensure returns the existing one": "--ensure uses the existing one",
    "``ensure`` returns it": "--ensure uses the existing one",
    "``ensure`` returns the existing one": "without --exclusive the existing one is used",
    "give the result of detach": "give the handle that onceward channel receive printed",
    "set public=True": "give a name",
    "is not a Page.next": "is not the next of a page",
    "give a datetime, or milliseconds since 1970 (1000 times time.time())": (
        "write 2026-01-31T12:00:00Z, or milliseconds since 1970"
    ),
    "add one, as in replace(tzinfo=UTC) or astimezone()": "end it in Z or in +02:00",
}
"""Whole phrases of the library, in the words of the shell's user."""
SWITCH: Final = re.compile(r"(?<![-\w.?&])([a-z_]+)=True\b")
OPTION: Final = re.compile(r"(?<![-\w.?&])([a-z_]+)=(?=[\s,;.)]|$)")
VALUE: Final = re.compile(r"(?<![-\w.?&/])([a-z_]+)=(?=['\d{])")
MAPPING: Final = re.compile(r"pass transports=\{.*?\} or ")
CODE: Final = re.compile(r"``([^`]*)``")


def in_shell(text: str) -> str:
    """
    Return an error text with options of Python spelled as options or variables of the shell.

    ``setting=True`` becomes the setting's variable, any other ``name=`` becomes ``--name``.
    """
    for phrase, told in PHRASES.items():
        text = text.replace(phrase, told)
    text = SWITCH.sub(_switch, CODE.sub(r"\1", MAPPING.sub("", text)))
    text = OPTION.sub(lambda match: _option(match[1]), text)
    return VALUE.sub(lambda match: f"{_option(match[1])} ", text)


def _switch(match: re.Match[str]) -> str:
    from onceward.message.settings import Settings  # noqa: PLC0415 - some errors only

    name = match[1]
    return f"{PREFIX}{name.upper()}=1" if name in Settings.model_fields else _option(name)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
