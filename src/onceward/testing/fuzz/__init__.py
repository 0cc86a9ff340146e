"""Fuzzing: everything that reads what strangers wrote, given what no friend would write."""

from onceward.testing.fuzz.campaign import Fuzzed, fuzz, fuzz_one

__all__ = ["Fuzzed", "fuzz", "fuzz_one"]
