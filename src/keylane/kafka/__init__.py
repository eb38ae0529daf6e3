"""Kafka's clients: the one package that imports confluent_kafka.

Doors: `admin`, `bulk`, `consumer`, `fenced_log`, `group_descriptions`, `group_standing`, `java_settings`,
`keyed_topic`, `link`, `log_changes`, `log_group`, `login`, `logs`, `membership`, `missing_topics`, `moving`,
`open_transactions`, `places`, `producer`, `ranges`, `redriving`, `replacing`, `schema`, `sole_member`, `topics`,
`transactional_producer`.
"""
