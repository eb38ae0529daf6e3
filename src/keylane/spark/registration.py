"""`format("keylane")` in the sessions of this process, however Spark finds its Python.

The idea: Spark looks for data sources, plans and runs with an interpreter of its own choice: `PYSPARK_PYTHON`, or else
the `python3` of the PATH. In a virtual environment that is not activated, and in a notebook's kernel, that one has no
keylane. So importing `keylane.spark` names this interpreter for a Spark that is to come, and registers the source with
the sessions of one that runs already. What a user has named stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from keylane.errors import UsageError
from keylane.foreign_errors import short_class_of, text_of
from keylane.spark.interpreters import other_version
from keylane.spark.reasons import reason_of
from keylane.spark.structured.options import NAME
from keylane.spark.versions import DATA_SOURCES
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logger_of(__name__)

DEFAULT = "python3"
"""What Spark runs when nobody has named another one."""
ANSWER_TIMEOUT_S = 20.0
"""For an interpreter that starts in 0.05 s as a rule."""


def begin() -> None:
    """Once, when `keylane.spark` is imported; not in Spark's own workers, which make no sessions."""
    if not _is_this(DEFAULT):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not _is_this(driver := os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)):
        logger.debug("PYSPARK_DRIVER_PYTHON=%s started this interpreter, and runs no workers", driver)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # jupyter, as a rule: Spark would look for sources with it
    _hear_of_sessions()
    _check_before_use()
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way to ask
        for session in {SparkSession.getActiveSession(), SparkSession._instantiatedSession}:  # noqa: SLF001
            if hasattr(session, "_jsparkSession"):  # not of Spark Connect, whose server may run in this process
                offer(session)  # type: ignore[arg-type]


def _hear_of_sessions() -> None:
    """PySpark tells nobody that a session was made: so its constructor does."""
    made = SparkSession.__init__

    @wraps(made)
    def init(self: SparkSession, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        offer(self)

    SparkSession.__init__ = init  # type: ignore[method-assign]


def offer(session: SparkSession) -> None:
    """Make the source known to a session whose JVM would not find it; otherwise nothing."""
    context: Any = session.sparkContext
    if context.pythonExec == DEFAULT and not _is_this(DEFAULT):  # it was made before this module was imported
        if context.master.startswith("local"):
            context.pythonExec = os.environ["PYSPARK_PYTHON"]
        else:
            logger.warning(
                "this session runs Python workers with %s, which is not this interpreter: they need keylane, too, or "
                "set PYSPARK_PYTHON=%s before the session starts",
                DEFAULT,
                sys.executable,
            )
    if not DATA_SOURCES.here:
        return
    try:
        if not _is_this(_looks_with(context)):
            _register(session, context)
    except (Py4JError, AttributeError, TypeError) as error:
        logger.warning(
            'format("keylane") is not known to this session (%s): set PYSPARK_PYTHON=%s before Spark starts',
            reason_of(text_of(error)) or short_class_of(error),
            sys.executable,
        )


def _check_before_use() -> None:
    """Refuses `format("keylane")` where Spark's own words would not help: it finds no such class, or no such file."""

    def checked(given: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(given)
        def format_(self: Any, source: str) -> Any:
            if source.lower() == NAME:
                _check(self._spark.sparkContext)
            return given(self, source)

        return format_

    readers_and_writers: tuple[Any, ...] = (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter)
    for one in readers_and_writers:
        one.format = checked(one.format)
    _check_output_mode()


def _check_output_mode() -> None:
    """Refuses `update` with what to write instead: Spark says, once the query runs, that no sink in Python has it."""
    writer: Any = DataStreamWriter
    given_format, given_mode = writer.format, writer.outputMode

    @wraps(given_format)
    def format_(self: Any, source: str) -> Any:
        self._keylane_sink = source.lower() == NAME
        _check_update(self)
        return given_format(self, source)

    @wraps(given_mode)
    def output_mode(self: Any, outputMode: str) -> Any:  # noqa: N803 - Spark's name
        self._keylane_mode = str(outputMode).lower()
        _check_update(self)
        return given_mode(self, outputMode)

    writer.format, writer.outputMode = format_, output_mode


def _check_update(writer: Any) -> None:
    if getattr(writer, "_keylane_sink", False) and getattr(writer, "_keylane_mode", "") == "update":
        raise UsageError(
            f'outputMode("update"): Spark has it for no sink in Python: take complete, or write each batch, '
            f'foreachBatch(lambda batch, _: batch.write.format("{NAME}").mode("append").options(…).save())'
        )


def _check(context: Any) -> None:
    """Raises `UsageError` when this session cannot have the source or the sink."""
    DATA_SOURCES.need(f'format("{NAME}")', 'take format("kafka"), with keylane.spark.GroupCommits')
    python = context.pythonExec
    if (
        found := shutil.which(python)
    ) is None:  # as a rule a path in what --archives unpacks, which is for executors alone
        raise UsageError(
            f'format("{NAME}"): Spark plans with the Python of its executors, {python}, which is not in {Path.cwd()}: '
            "start in the folder that has this environment, or unpack its archive there"
        )
    ours = ".".join(map(str, sys.version_info[:2]))
    theirs = None if _is_this(python) else _version_of(str(Path(found).absolute()))
    if theirs is not None and theirs != ours:
        raise other_version(python, theirs, ours)


@cache
def _version_of(python: str) -> str | None:
    """Major and minor, as `3.11`; None for an interpreter that does not say, of which Spark will tell."""
    command = [python, "-c", "import sys; print('.'.join(map(str, sys.version_info[:2])))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("%s does not tell its version: %r", python, error)
        return None
    return done.stdout.strip()


def _register(session: SparkSession, context: Any) -> None:
    """As `session.dataSource.register`, which takes a source of the active session for one of this session."""
    from pyspark.sql.udf import _wrap_function

    from keylane.spark.structured.source import KeylaneSource

    sources = session._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
    if sources.dataSourceExists(NAME):
        return
    package = "org.apache.spark.sql.execution.datasources.v2.python"
    made = getattr(context._jvm, f"{package}.UserDefinedPythonDataSource")  # noqa: SLF001
    sources.registerDataSource(NAME, made(_wrap_function(context, KeylaneSource)))


def _looks_with(context: Any) -> str:
    """The command that Spark looks for data sources with: that of the environment in which its JVM was launched."""
    utils = getattr(context._jvm, "org.apache.spark.api.python.PythonUtils$")  # noqa: SLF001
    return str(getattr(utils, "MODULE$").defaultPythonExec())


def _is_this(python: str) -> bool:
    """Whether a command is this interpreter, or one of its names. Of a virtual environment, not of what it links to."""
    found = shutil.which(python)
    if found is None or not Path(found).name.startswith("python"):
        return False
    return Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
