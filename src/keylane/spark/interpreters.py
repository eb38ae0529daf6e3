"""The executors' Python where it is not the driver's: what is wrong with it, in one line with the way out. Pure.

Spark tells of it in a stack trace of the task that failed, and leaves out which interpreter that was.
"""

from __future__ import annotations

import re

from keylane.errors import UsageError

NOT_STARTED = re.compile(r'Cannot run program "([^"]+)"[^:\n]*: (?:Exec failed, )?error[=:] ?(2|13)\b')
"""What Java says where a program cannot be started, with the system's number; `error: 2` from Java 23 on."""
REASONS = {"2": "there is no such file", "13": "it may not be run"}
"""By those numbers (ENOENT, EACCES): Javas have different words for them."""
OTHER_VERSION = re.compile(
    r"Python in worker has different version:? \(?(\d+)(?:\.|, )(\d+)\)? than that in driver:? (\d+\.\d+)"
)
"""What PySpark's workers say; before 4.0 they give their own version as a tuple."""


def wrong_python(text: str, python: str) -> UsageError | None:
    """What the text of a failed job says of its Python; None when that is not what failed.

    `python`: what Spark runs workers with.
    """
    if (found := NOT_STARTED.search(text)) is not None:
        return UsageError(
            f"the executors cannot run {found[1]} as their Python ({REASONS[found[2]]}): name one that they have with "
            "spark.pyspark.python or PYSPARK_PYTHON, for example ./environment/bin/python out of --archives "
            "(docs/clusters.md)"
        )
    if (found := OTHER_VERSION.search(text)) is not None:
        return other_version(python, f"{found[1]}.{found[2]}", found[3])
    return None


def other_version(python: str, theirs: str, ours: str) -> UsageError:
    """For an interpreter of the executors with another minor version than the driver's."""
    return UsageError(
        f"the executors' Python, {python}, is {theirs}, and the driver's is {ours}: Spark needs the same minor "
        f"version; name a Python {ours} that they have with spark.pyspark.python or PYSPARK_PYTHON, or start the "
        f"driver with Python {theirs}"
    )
