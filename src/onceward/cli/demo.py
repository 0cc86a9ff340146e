"""The demo: a team of processes at real work, killed at random moments, and the proof that nothing was lost or doubled."""

from __future__ import annotations

import importlib.resources
import json as json_text
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onceward.cli.codes import FAILED, SIGNAL, Conflicting, NothingThere, Usage
from onceward.clock import SystemClock

WORKERS: Final = ("worker-1", "worker-2", "worker-3")
BOSS: Final = "coordinator"
START_WITHIN: Final = 60.0
STOP_WITHIN: Final = 5.0
CRASHES: Final = 3
"""How often a member may end by itself before the demo gives up on it."""
TICK: Final = 0.05

Watch = Callable[[float, str], None]
"""Told how many seconds have passed and what there is to say."""
