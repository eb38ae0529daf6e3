"""The DataFrame pipeline beside Spark's own Kafka connector and plain functions (`make bench-dataframes`)."""
