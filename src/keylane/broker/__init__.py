"""The embedded broker: one node that serves the Kafka protocol from a data folder, with one file an API."""
