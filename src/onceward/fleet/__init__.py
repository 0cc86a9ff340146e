"""
Read many agents' files at once, and judge what became of every message.

Needs neither Spark nor Arrow: ``onceward.spark`` builds on it, never the other way. The modules
``rows`` and ``ship`` alone need pyarrow.
"""
