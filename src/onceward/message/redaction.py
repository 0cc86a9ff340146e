"""Hide secrets and reveal hidden characters in texts that people read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from onceward.errors import InvalidArgument

HIDDEN: Final = "•••"
KEYS: Final = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|authorization|api[_-]?key|credential"
    r"|private[_-]?key|cookie|jwt"
)
"""Fields that are hidden by default; patterns of the user add to them."""
NAMED: Final = re.compile(
    rf"""(?P<name>(?:{KEYS})(?:[\w-]{{0,40}}\\*["']?\s*=(?!=)|[\w-]{{0,40}}\\*["']\s*:|\s*:)\s*)"""
    r"""(?:(?P<quote>\\*["'])(?:(?!(?<!\\)(?P=quote)).)*(?:(?P=quote)|\Z)"""
    r"""|(?:(?:bearer|basic|digest|token)\s+)?[^\s,;&"'(){}\[\]]+)""",
    re.IGNORECASE | re.DOTALL,
)
"""A field and its value inside a text, as JSON, Python, YAML, a query or a header writes them."""
COOKIE: Final = re.compile(r"(?P<name>\bcookie:\s*)[^\r\n]+", re.IGNORECASE)
SECRETS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"  # a JSON Web Token: its header is an object
    r"|(?<![\w-])(?:sk|rk|pk)[-_][\w-]{16,}"  # of model providers and of Stripe
    r"|(?<!\w)(?:gh[a-z]_\w{20,}|github_pat_\w{20,}|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{16})",
    re.DOTALL,
)
"""Values that are secrets in any place."""
BEARER: Final = re.compile(r"(?P<name>\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
LOGIN: Final = re.compile(r"(?P<name>://[^/\s:@]{0,100}:)[^/\s@]{1,200}(?=@)")
"""The password in an address, such as that of a database."""
CARD: Final = re.compile(
    r"(?<!\d)(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|35\d\d|3[0689]\d\d|3[47]\d\d|6(?:011|[45]\d\d))"
    r"(?:[ -]?\d){8,15}(?!\d)"
)
"""Digits of payment cards (ISO/IEC 7812), with or without spaces; the last is a check digit."""
DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
"""Sum of the digits of twice a digit."""


class Redaction:
    """
    Hide fields by their names, and text that a pattern matches.

    A field whose name contains a match of a pattern is hidden with its content, also in JSON inside
    a string. In other text these are hidden: values of such fields (``password=…``), passwords in
    addresses, bearer tokens, keys of well-known services, JSON Web Tokens, private keys, payment
    card numbers, and matches of the user's patterns.

    Raises:
        InvalidArgument: a pattern is not a regular expression.

    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [_compiled(pattern) for pattern in patterns]
        self._texts = given
        self._names = [_compiled(KEYS), *given]

    def value(self, value: Any) -> Any:
        """Return a JSON value with its secrets hidden."""
        match value:
            case dict():
                return {
                    self.text(name): HIDDEN if self._is_secret(name) else self.value(each)
                    for name, each in value.items()
                }
            case list():
                return [self.value(each) for each in value]
            case str():
                return self._string(value)
            case int() | float() if not isinstance(value, bool):
                return value if self.text(str(value)) == str(value) else HIDDEN
        return value

    def text(self, text: str) -> str:
        """Return a text with its secrets hidden."""
        text = SECRETS.sub(HIDDEN, text)
        for named in (COOKIE, BEARER, LOGIN, NAMED):
            text = named.sub(rf"\g<name>{HIDDEN}", text)
        text = CARD.sub(_unless_no_card, text)
        for pattern in self._texts:
            text = pattern.sub(HIDDEN, text)
        return text

    def error(self, text: str | None) -> str | None:
        """Return an error text with its secrets hidden; None for None."""
        return None if text is None else self.text(text)

    def json(self, text: str) -> str:
        """Return JSON text, indented, with its secrets hidden; other text as text."""
        try:
            return pretty(self.value(json.loads(text)))
        except ValueError:
            return self.text(text)
        except RecursionError:
            return HIDDEN

    def _string(self, text: str) -> str:
        """Redact a string of a body; JSON in it, such as a tool call's arguments, by field."""
        if text.lstrip()[:1] not in {"{", "[", '"'}:
            return self.text(text)
        try:
            inner = json.loads(text)
            shown = self.value(inner)
        except ValueError:
            return self.text(text)
        except RecursionError:
            return HIDDEN
        return text if shown == inner else json.dumps(shown, ensure_ascii=False)

    def _is_secret(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self._names)


def pretty(value: Any) -> str:
    """Return a JSON value as text on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _unless_no_card(found: re.Match[str]) -> str:
    """Hide digits with a correct check digit (ISO/IEC 7812-1, Luhn), and leave others."""
    digits = [int(each) for each in found[0] if each.isdigit()][::-1]
    total = sum(digits[::2]) + sum(DOUBLED[each] for each in digits[1::2])
    return found[0] if total % 10 else HIDDEN


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        msg = f"redact pattern {pattern!r} is not a regular expression: {error}"
        raise InvalidArgument(msg) from error


JOINERS: Final = "[\u200c\u200d]"
"""Zero-width joiners: Persian, Indic scripts and emoji need them, ASCII does not."""
UNSEEN: Final = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
    f"|(?<![^\0-\x7f]){JOINERS}|{JOINERS}(?![^\0-\x7f])"
)
"""Controls, direction marks, zero widths, tags and the supplementary variation selectors."""


def visible(text: str) -> str:
    r"""Return *text* with each hidden character as ``\u{…}``; others stay as they are."""
    return UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)
