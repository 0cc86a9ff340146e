"""Benchmarks: what the library costs over the same work written by hand, measured side by side."""
