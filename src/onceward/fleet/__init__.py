"""
Read many agents' files at once, and judge the outcome of every message.

Needs neither Spark nor Arrow: ``onceward.fleet.spark`` builds on it, never the other way. The
modules ``rows`` and ``ship`` alone need pyarrow.

Imports the public names, file and message.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onceward.fleet.report import Report
    from onceward.fleet.run import reconcile
    from onceward.fleet.verdicts import Rules

__all__ = ["Report", "Rules", "reconcile"]
HOMES: Final = {"Report": "report", "Rules": "verdicts", "reconcile": "run"}


def __getattr__(name: str) -> Any:
    """Load a public name with its module when it is used."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
