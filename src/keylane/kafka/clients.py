"""The Kafka clients that keylane makes: confluent-kafka's own classes, whatever has taken their place in its package.

OpenTelemetry's instrumentation, for one, puts classes of its own there. These would write a second `traceparent` beside
keylane's, and leave the context of whatever was polled last on keylane's threads.
"""

from confluent_kafka.cimpl import Consumer, Producer

__all__ = ["Consumer", "Producer"]
