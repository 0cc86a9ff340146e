"""SQLAlchemy's suite for dialects; ``plugin`` says on what it runs."""

from sqlalchemy.testing import suite
from sqlalchemy.testing.suite import *  # noqa: F403 - as SQLAlchemy asks

# Each of its cases writes by two connections of one thread at a time.
del suite.IntegerTest.test_huge_int
# It lists a second schema.
del suite.ComponentReflectionTest.test_metadata
