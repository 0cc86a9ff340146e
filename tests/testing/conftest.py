"""The plugin's fixtures, also where the package is on the path without being installed."""

from onceward.testing.plugin import harness, manual_clock, postbox

__all__ = ["harness", "manual_clock", "postbox"]
