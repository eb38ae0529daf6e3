"""`format("keylane")` of a Spark Connect session whose server has no keylane: refused, with who plans it.

The idea: a client has keylane, so that Spark's own words ("Failed to find the data source") would have its user look
in the wrong place. The server is asked once a session, when the format is named first.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from keylane.errors import UsageError
from keylane.foreign_errors import text_of
from keylane.spark.connect import is_connect
from keylane.spark.structured.options import NAME
from keylane.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS = "pyspark.sql.connect.session"
NOT_FOUND = "DATA_SOURCE_NOT_FOUND"
"""Spark's name for a source that its server does not find."""

_is_checking = False
"""Whether PySpark's readers and writers of Connect ask already."""
_known: set[str] = set()
"""Ids of sessions whose server has the source."""


def begin() -> None:
    """Once, when `keylane.spark` is imported: for sessions that are there, and for those to come."""
    if SESSIONS in sys.modules:
        _check_formats()
    made = SparkSession.Builder.getOrCreate

    @wraps(made)
    def get_or_create(self: Any) -> SparkSession:
        session = made(self)
        if is_connect(session):
            _check_formats()
        return session

    SparkSession.Builder.getOrCreate = get_or_create  # type: ignore[method-assign]


def _check_formats() -> None:
    global _is_checking
    if _is_checking:
        return
    _is_checking = True
    from pyspark.sql.connect.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.connect.streaming.readwriter import DataStreamReader, DataStreamWriter

    given = DataFrameReader.format
    for one, name in (
        (DataFrameReader, "_client"),
        (DataStreamReader, "_client"),
        (DataFrameWriter, "_spark"),
        (DataStreamWriter, "_session"),
    ):
        one.format = _checked(one.format, name, given)  # type: ignore[method-assign]


def _checked(given: Callable[..., Any], session: str, read: Callable[..., Any]) -> Callable[..., Any]:
    """`session`: the attribute that has it; `read`: a reader's own `format`, which asks."""

    @wraps(given)
    def format_(self: Any, source: str) -> Any:
        if source.lower() == NAME:
            _check(getattr(self, session), read)
        return given(self, source)

    return format_


def _check(session: Any, read: Callable[..., Any]) -> None:
    """Raises `UsageError` where the server does not find the source."""
    if session.session_id in _known:
        return
    try:
        read(session.read, NAME).load().schema  # noqa: B018 - asks the server, which wants options as a rule
    except Exception as error:  # of gRPC, of Spark's, of the source itself: what else fails is told when it is used
        if NOT_FOUND in text_of(error):
            raise UsageError(
                f'format("{NAME}"): the server of this Spark Connect session plans it, and its Python does not have '
                f"keylane: install keylane[spark] {__version__} there, in the Python that spark.pyspark.python names"
            ) from None
    _known.add(session.session_id)
