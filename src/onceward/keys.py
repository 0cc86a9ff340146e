"""The keys that a home shares with peers on other machines."""

from onceward.transports.network.keys import KeyInfo, Keys

__all__ = ["KeyInfo", "Keys"]
