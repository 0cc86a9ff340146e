"""Two processes that pass mail for hours while somebody watches what grows: memory, descriptors, WAL, tables."""

from onceward.testing.soak.course import Course, Sample, soak

__all__ = ["Course", "Sample", "soak"]
