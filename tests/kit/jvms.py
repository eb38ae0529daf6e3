"""Java options of the JVMs that tests start, which come to them by `JAVA_TOOL_OPTIONS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They halve what the start of a JVM costs; those of tests have nothing to optimise."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""No warning on standard output that an archive does not fit, or lacks a class."""


def java_options(archive: Path) -> str:
    """With the archive of Spark's classes (`kit.spark_classes`) where it was written; a JVM that it does not fit goes
    without."""
    return f'{LIGHT} "-XX:SharedArchiveFile={archive}" {QUIET}' if archive.exists() else LIGHT
