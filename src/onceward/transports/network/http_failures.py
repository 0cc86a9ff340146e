"""Describe why an exchange over HTTP failed, and what to check first."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpcore2

from onceward.transports.network.http_network import TlsFailed, TlsTimeout

UNTRUSTED: Final = frozenset({18, 19, 20, 21})
"""Codes of OpenSSL for a certificate that no known authority has signed."""
OTHER_NAME: Final = frozenset({62, 64})
CERTIFICATE_WANTED: Final = "CERTIFICATE_REQUIRED"
OWN_CERTIFICATE: Final = "set ONCEWARD_HTTP_CERTIFICATE to the file of ours"
NO_HTTP: Final = "url: the server sent no http answer: it expects https, or it ended"
ENDED: Final = (httpcore2.RemoteProtocolError, httpcore2.ReadError, httpcore2.WriteError)
ENDED_OVER_TLS: Final = (
    f"the https server ended the connection: it may require a certificate ({OWN_CERTIFICATE}), or "
    "be overloaded"
)


def in_words(error: Exception, scheme: str, authorities: Path | None) -> str:
    """Return why a request to a url of *scheme* failed; *authorities* is ``http_ca``."""
    text = str(error) or type(error).__name__
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate: {_distrust(cause.verify_code, authorities)}: {text}"
    if CERTIFICATE_WANTED in text.upper():
        return f"certificate: the server requires a client certificate: {OWN_CERTIFICATE}: {text}"
    if "CERTIFICATE" in text.upper():
        return f"certificate: {text}"
    if isinstance(error, (TlsFailed, TlsTimeout)):
        return f"url: the server does not speak https, perhaps http: {text}"
    if scheme == "https" and isinstance(error, ENDED):
        return f"{ENDED_OVER_TLS}: {text}"
    if isinstance(error, httpcore2.RemoteProtocolError):
        return f"{NO_HTTP}: {text}"
    if isinstance(error, httpcore2.ConnectError):
        return f"url: no server was reached there: {text}"
    return f"{type(error).__name__}: {text}"


def _distrust(code: int, authorities: Path | None) -> str:
    if code in OTHER_NAME:
        return "the server's is for another name than the url's"
    if code not in UNTRUSTED:
        return "the server's is not valid"
    if authorities:
        return f"http_ca {authorities} has not signed the server's: correct ONCEWARD_HTTP_CA"
    return (
        "the server's is from an authority that this system does not trust: set ONCEWARD_HTTP_CA "
        "to the file of that authority"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
