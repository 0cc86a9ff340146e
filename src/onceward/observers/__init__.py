"""Hooks that ship with the library."""
