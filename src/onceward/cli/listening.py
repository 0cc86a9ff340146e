"""The options of commands that take parcels in from other machines."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from onceward.cli.exit_codes import Usage
from onceward.cli.options import Quiet

if TYPE_CHECKING:
    from onceward.http import HttpListener
    from onceward.nats import NatsListener


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a command takes parcels in from other machines."""

    listen: str | None = None
    """Take parcels in at this url: https://0.0.0.0:8443, or that of a server: nats://broker:4222."""
    certfile: Path | None = None
    """The certificate of https, with its chain."""
    keyfile: Path | None = None
    """Its key. Default: it is in the file of the certificate."""
    client_ca: Path | None = None
    """Take connections only with a certificate of these authorities (mTLS)."""
    behind_proxy: Annotated[bool, Quiet] = False
    """Listen with plain http for other machines: a proxy in front speaks https."""

    def listeners(self) -> list[HttpListener] | list[NatsListener]:
        """Return the listener, none where no url is given; raise Usage without the extra."""
        if self.listen is None:
            return []
        if self.listen.startswith("nats:"):
            return [self._at_nats(self.listen)]
        try:
            from onceward.http import HttpListener  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            msg = (
                f"--listen needs {error.name}, which is not installed: pip install 'onceward[http]'"
            )
            raise Usage(msg) from error
        return [
            HttpListener(
                self.listen,
                certfile=str(self.certfile or ""),
                keyfile=str(self.keyfile or ""),
                client_ca=str(self.client_ca or ""),
                behind_proxy=self.behind_proxy,
            )
        ]

    def _at_nats(self, url: str) -> NatsListener:
        if any((self.certfile, self.keyfile, self.client_ca, self.behind_proxy)):
            msg = "--certfile, --keyfile, --client-ca and --behind-proxy are for https"
            raise Usage(msg)
        if find_spec("nats") is None:
            msg = "--listen needs an extra: pip install 'onceward[nats]'"
            raise Usage(msg)
        from onceward.nats import NatsListener  # noqa: PLC0415 - loads asyncio

        return NatsListener(url)
