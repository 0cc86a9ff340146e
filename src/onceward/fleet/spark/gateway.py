"""
Start the JVM to which PySpark connects.

PySpark's own launcher is a shell script that requires a module which the Java wheel lacks.
This module starts the JVM with the same class path and options, and passes its port to PySpark
in the documented environment variables.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from onceward.errors import OncewardError
from onceward.fleet.spark.java import Java, find
from onceward.message.clock import monotonic

VECTOR: Final = "jdk.incubator.vector"
NATIVE_ACCESS_SINCE: Final = 24
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
OF_BASE: Final = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
OPENED: Final = (
    *(f"java.base/{name}" for name in OF_BASE),
    "java.security.jgss/sun.security.krb5",
)
"""The list of Spark's launcher, which Spark reads and changes."""
PROPERTIES: Final = (
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "-Djdk.reflect.useDirectMethodHandle=false",
)
QUIET: Final = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""
PATIENCE: Final = 180.0
_lock = Lock()
_running: list[tuple[subprocess.Popen[bytes], tempfile.TemporaryDirectory[str]]] = []


class SparkDidNotStart(OncewardError):
    """The JVM ended before it answered, or did not answer in time: see its output on stderr."""


@contextmanager
def announced(memory: str) -> Iterator[None]:
    """
    Start a JVM with *memory* heap unless this process has one; PySpark uses it in the block.

    No longer than that: a program that this one starts must not find our JVM
    in its environment and take it for its own.

    Raises:
        NoJava, SparkDidNotStart: see each class.

    """
    with _lock:
        if _running or PORT in os.environ:
            yield
            return
        folder = tempfile.TemporaryDirectory(prefix="onceward-spark-", ignore_cleanup_errors=True)
        try:
            process, told = _launch(find(), memory, Path(folder.name))
        except BaseException:
            folder.cleanup()
            raise
        _running.append((process, folder))
        os.environ |= told
        try:
            yield
        finally:
            for name in told:
                del os.environ[name]


def running() -> bool:
    """Return whether this process has a JVM of ours."""
    return bool(_running)


def stop() -> None:
    """End the JVM that was started, after its sessions were stopped."""
    with _lock:
        for process, folder in _running:
            if process.stdin is not None:
                process.stdin.close()  # it ends when its stdin does
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            folder.cleanup()
        _running.clear()


def _launch(
    java: Java, memory: str, folder: Path
) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    answer = folder / "gateway"
    (folder / "log4j2.properties").write_text(QUIET, encoding="utf-8")
    env = environment(os.environ) | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)}
    process = subprocess.Popen(  # noqa: S603 - our own command
        command(java, memory, folder),
        env=env,
        stdin=subprocess.PIPE,
        preexec_fn=_ignore_interrupt if os.name == "posix" else None,  # noqa: PLW1509 - as PySpark does: Ctrl-C is the program's
    )
    try:
        port, secret = _answered(process, answer)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process, {PORT: str(port), SECRET: secret}


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def command(java: Java, memory: str, folder: Path) -> list[str]:
    """Return the command line of a JVM with Spark in it."""
    import pyspark  # noqa: PLC0415 - an extra; its jars are wanted, not its code

    jars = Path(pyspark.__file__).parent / "jars"
    return [
        str(java.program),
        "-cp",
        os.pathsep.join((str(folder), str(jars / "*"))),
        f"-Xmx{memory}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:+UseParallelGC",  # jobs are judged by when they end, not by their longest pause
        *([f"--add-modules={VECTOR}"] if java.has(VECTOR) else []),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
        *PROPERTIES,
        f"-Dderby.stream.error.file={folder / 'derby.log'}",  # else it lies in the current one
        *(
            ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
            if java.version >= NATIVE_ACCESS_SINCE
            else []
        ),
        "org.apache.spark.deploy.SparkSubmit",
        "--conf",
        f"spark.driver.memory={memory}",
        "pyspark-shell",
    ]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the JVM's environment, which its Python workers inherit: interpreter and packages."""
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    found = os.pathsep.join(path for path in sys.path if path)
    return {"SPARK_CONNECT_MODE": "0"} | ours | dict(given) | {"PYTHONPATH": found}


def _answered(process: subprocess.Popen[bytes], answer: Path) -> tuple[int, str]:
    deadline = monotonic() + PATIENCE
    while not answer.exists():
        if process.poll() is not None or monotonic() > deadline:
            ended = f"exit code {process.poll()}"
            msg = f"the JVM did not answer within {PATIENCE:.0f} s ({ended}): see its output above"
            raise SparkDidNotStart(msg)
        time.sleep(0.05)
    said = answer.read_bytes()
    port, length = struct.unpack_from(">ii", said)
    return port, said[8 : 8 + length].decode()
