"""The pipeline of orders.py on lanes of one's own PySpark session."""

from orders import orders

import keylane as kl

spark = kl.spark.session("local[4]")  # or any SparkSession; this one brings a Java when the machine has none
query = kl.spark.start(orders, spark, lanes=2, trigger={"availableNow": True})
query.awaitTermination()
print(query.snapshot().processed, "records processed")
spark.stop()
