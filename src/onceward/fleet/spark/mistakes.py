"""Tell a user's mistake in one sentence, where Spark would print a traceback of Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import SparkContext
from pyspark.errors import AnalysisException

from onceward.fleet.columns import InvalidOption
from onceward.fleet.files import NoSuchPath

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Variable that PySpark reads when a worker reports the error that ends it."""


@contextmanager
def reported() -> Iterator[None]:
    """
    Have Spark report a mistake in this block without its traceback.

    Spark plans in worker processes of its own, and each ends with the error that it reports: the
    variable hides no other error. The driver's process is left as it is.
    """
    try:
        yield
    except (InvalidOption, NoSuchPath):
        if SparkContext._active_spark_context is None:
            os.environ[HIDE] = "1"
        raise


@contextmanager
def analysed() -> Iterator[None]:
    """
    Turn a mistake in this block, which runs in the driver, into Spark's own error.

    Raises:
        AnalysisException: a mistake was made; the text is its sentence.

    """
    try:
        yield
    except NoSuchPath as error:
        told = {"path": error.path}
        raise AnalysisException(error.sentence, "PATH_NOT_FOUND", told) from None
    except InvalidOption as error:
        raise AnalysisException(str(error)) from None
