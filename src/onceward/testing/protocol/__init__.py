"""The protocol as a model, searched exhaustively, and held against the real functions."""

from onceward.testing.protocol.replay import replay
from onceward.testing.protocol.search import Search, explore
from onceward.testing.protocol.values import Rules

__all__ = ["Rules", "Search", "explore", "replay"]
