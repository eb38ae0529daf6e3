"""Kafka's clients: the one package that imports confluent_kafka."""
