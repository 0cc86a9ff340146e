"""Limits of handlers: calls at once, calls in a span of time, and no like body twice."""
