"""Python processes of tests have PySpark from where it is installed, with its bytecode, and no pandas.

keylane does not ask for pandas, so what runs here runs without. For a client of Spark Connect and its server, which do,
KEYLANE_PANDAS is set.

Spark puts `pyspark.zip` and a jar of its own before that. What is imported from an archive is compiled in each of the
many processes that a session starts, for half a second of a processor.
"""

import os
import sys

from kit.hidden import hide


def _is_installed(place: str) -> bool:
    """Whether this is a part of a PySpark that is on the path itself."""
    packages, inside, _ = place.rpartition("/pyspark/")
    return bool(inside) and packages in sys.path


sys.path[:] = [place for place in sys.path if not _is_installed(place)]
if "KEYLANE_PANDAS" not in os.environ:
    hide("pandas")
