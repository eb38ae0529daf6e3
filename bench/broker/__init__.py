"""The embedded broker beside Apache Kafka: `make bench-broker`."""
