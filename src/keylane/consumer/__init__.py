"""Kafka's part on the flow: partitions, commits, rebalances, results, and the modes of delivery.

Doors: `assembly`, `closing`, `commits`, `decoding`, `deliveries`, `events`, `health`, `lease`, `loop`, `outputs`,
`own_topics`, `partition`, `ports`, `results`, `returns`, `snapshot`, `start`, `streams`.
"""
