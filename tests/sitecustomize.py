"""Python processes of tests have PySpark from where it is installed, with its bytecode, and no pandas.

Spark puts `pyspark.zip` and a jar of its own before that. What is imported from an archive is compiled in each of the
many processes that a session starts, for half a second of a processor. A mutant is in each of these processes.
"""

import os
import sys

from kit.no_pandas import hide_pandas


def _is_installed(place: str) -> bool:
    """Whether this is a part of a PySpark that is on the path itself."""
    packages, inside, _ = place.rpartition("/pyspark/")
    return bool(inside) and packages in sys.path


sys.path[:] = [place for place in sys.path if not _is_installed(place)]
hide_pandas()
if os.environ.get("KEYLANE_PLANTED"):
    from mutants.planted import plant

    plant()
