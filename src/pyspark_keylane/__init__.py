"""What PySpark finds by name: the data source, in packages named `pyspark_*`, and the daemon of its Python workers.

So `spark.read.format("keylane")` works wherever keylane is installed, without registering anything.
"""

from typing import Any

__all__ = ["DefaultSource"]  # made when it is asked for: what it imports starts threads, before the daemon forks


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keylane.spark.structured.source import KeylaneSource

    return KeylaneSource
