"""Check that the extra ``onceward[ship]`` is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from onceward.errors import OncewardError

INSTALL: Final = "pip install 'onceward[ship]'"


class ShipExtraMissing(OncewardError):
    """The library of the extra ``onceward[ship]`` is not installed: install the extra."""


def check() -> None:
    """Raise ShipExtraMissing unless pyarrow is installed."""
    if find_spec("pyarrow") is None:
        msg = f"the shipped log needs pyarrow, which is not installed: {INSTALL}"
        raise ShipExtraMissing(msg)
