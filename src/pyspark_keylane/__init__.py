"""Where PySpark looks for data sources by itself: in packages named `pyspark_*`, under the name `DefaultSource`.

So `spark.read.format("keylane")` works wherever keylane is installed, without registering anything.
"""

from keylane.spark.structured.source import KeylaneSource as DefaultSource

__all__ = ["DefaultSource"]
