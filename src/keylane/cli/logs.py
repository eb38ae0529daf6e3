"""Where log lines go: to standard error, or where the application of `keylane run` sends its own."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from keylane.telling import visible

LIBRDKAFKA_LINE = "%s [%s] %s"
"""The form in which confluent-kafka logs librdkafka's own lines: one a failed attempt to connect, ten a second. What
they mean for a run is logged by keylane, once."""

PY4J_LINE = "Exception while sending command."
"""What Py4J logs with a traceback, by no logger of its own, where a JVM ends below a call. What that means is told in
the command's last line."""

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Lines(logging.Formatter):
    """Lines for a terminal. A record's own lines stay, as of a traceback; other control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the moment, which a progress bar replaces while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A standard error that takes no more takes no traceback either."""


def log_to_stderr(*, verbose: bool) -> None:
    """keylane's lines go to standard error: warnings and worse, or with `verbose` what happens too."""
    handler = StderrHandler()
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose:
        handler.addFilter(lambda record: record.msg != LIBRDKAFKA_LINE)
    handler.addFilter(lambda record: not getattr(record, "is_end_of_run", False))  # the command's last line says it
    handler.setFormatter(_Lines(LINE))
    logger = logging.getLogger("keylane")
    logger.handlers[:] = [handler]
    logger.setLevel(handler.level)
    logger.propagate = False


def leave_to_application(*, verbose: bool) -> None:
    """The file of a pipeline may have set up logging: its handlers get keylane's lines too, at its level. Where one of
    them writes to a terminal, keylane's own handler goes."""
    _enable_again()
    root, logger = logging.getLogger(), logging.getLogger("keylane")
    if not root.handlers:
        return
    logger.propagate = True
    ours = [one for one in logger.handlers if isinstance(one, StderrHandler)]
    if ours and logger.level == ours[0].level:  # else the file has set one
        logger.setLevel(min(root.level, ours[0].level) if verbose else root.level or logging.WARNING)
    if any(getattr(one, "stream", None) in {sys.stderr, sys.stdout} for one in root.handlers):
        for handler in ours:
            logger.removeHandler(handler)


def _enable_again() -> None:
    """`logging.config` disables what it does not name of the loggers that there are: in a program's own order keylane's
    come later, here they came before the file."""
    for name, one in logging.Logger.manager.loggerDict.items():
        if isinstance(one, logging.Logger) and (name == "keylane" or name.startswith("keylane.")):
            one.disabled = False


def mute_py4j() -> None:
    """From now on the end of a JVM leaves no traceback of Py4J's."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: record.msg != PY4J_LINE)
