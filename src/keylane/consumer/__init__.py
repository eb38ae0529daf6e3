"""Kafka's part on the flow: partitions, commits, rebalances, results, and the modes of delivery.

Doors: `assembly`, `callbacks`, `closing`, `commits`, `dead_letters`, `decoding`, `events`, `health`, `intake`,
`loop`, `outputs`, `own_topics`, `passing`, `ports`, `results`, `returns`, `settings`, `snapshot`, `start`,
`start_report`, `streams`, `tracing`, `work`.
"""
