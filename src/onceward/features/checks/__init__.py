"""Invariants of files, and repairs."""
