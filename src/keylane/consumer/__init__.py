"""Kafka's part on the flow: partitions, commits, rebalances, results, and the modes of delivery."""
