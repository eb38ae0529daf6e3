"""The pipeline's librdkafka settings, divided between consumer and producer, with what keylane adds.

The idea: users write one dict. librdkafka warns about settings of the other kind, so each side gets its own; what
keylane needs for tracking is set here and nowhere else (`keylane.options` refuses it in the dict).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from keylane.kafka.client_log import ClientLog
from keylane.kafka.missing_topics import NO_NEW_TOPICS
from keylane.options import Transactional
from keylane.pipeline import TRANSACTION_TIMEOUT_MS, Pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

CONSUMER_ONLY = frozenset(
    {
        "check.crcs",
        "consume.callback.max.messages",
        "coordinator.query.interval.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "session.timeout.ms",
    }
)
"""librdkafka's CONFIGURATION.md, column C."""

PRODUCER_ONLY = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "linger.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""librdkafka's CONFIGURATION.md, column P."""

MEMBERS_ONLY = frozenset(
    {
        "coordinator.query.interval.ms",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
"""What only the client that is the group's member needs."""

STATISTICS = frozenset({"statistics.interval.ms", "stats_cb"})
"""A user's statistics are those of the client that reads."""

CHECKED: dict[str, Any] = {
    # As Java's consumer; librdkafka's default is to believe what it reads. A record that was altered on a disk or on
    # its way ends the consumer, and no handler sees it (measured: docs/reliability.md).
    "check.crcs": True,
}
"""Of every client of keylane's that reads records; a user's own setting wins."""

SILENT_MS = 5_000
"""How long a node may be silent while an answer is due. A node that hangs keeps its connections, and what waits for its
answer is sent to the next one only when the client drops them: after 60 s by librdkafka's default, when the cluster has
gone on long before (Kafka gives a node up after 9 s). What a node that lives answers later than that is asked again."""

MEMBER_DEFAULTS: dict[str, Any] = {
    "socket.timeout.ms": SILENT_MS,
    # Who coordinates the group is asked this often, of any node: librdkafka waits for a heartbeat's answer as long as
    # the session lasts, and for a join's 5 minutes, and asks each 10 minutes by its default.
    "coordinator.query.interval.ms": 2_000,
}

LEADERS: dict[str, Any] = {
    # Who leads is asked this often, of any node, so that what one that hangs does not answer is given up, and nothing
    # more is sent to it (default: 5 min).
    "topic.metadata.refresh.interval.ms": 2_000,
}

READER_DEFAULTS: dict[str, Any] = (
    CHECKED
    | LEADERS
    | {
        # The only connection may be to such a node. A twelfth of librdkafka's time takes a twelfth of its 50 MB.
        "socket.timeout.ms": SILENT_MS,
        "fetch.max.bytes": 4_000_000,
    }
)
"""Of every client that reads and is no member (`reading`)."""

FETCH_BYTES, ITS_ALIAS = "max.partition.fetch.bytes", "fetch.message.max.bytes"
LEAST_FETCH_BYTES = 20_000
"""More than a batch of Java's producers (16,384 by default): a larger one comes only as the first of an answer."""
FETCH_BYTES_OF_ALL = 5_000_000
"""All partitions have their turn within so many bytes, where that leaves each the least."""

CONSUMER_DEFAULTS: dict[str, Any] = CHECKED | {
    # librdkafka waits this long before it fetches again once its queue was full; its default of 1,000 ms lets a fast
    # consumer stand still for most of each second (measured: 280,000 records/s with it, 1,400,000 with 20 ms).
    "fetch.queue.backoff.ms": 20,
    # What is prefetched of a partition is thrown away when it is paused; the default of 100,000 makes that expensive.
    "queued.min.messages": 20_000,
    # Of all partitions together. A consumer of many buffers more records itself, and takes them from this: the default
    # of 64 MB is a million small ones, several hundred bytes each.
    "queued.max.messages.kbytes": 16_384,
    # librdkafka hands out an answer's records partition by partition. With its default of 1 MB that is 10,000 small
    # records of one, and the others wait behind them. Where there are many partitions, it is less (`fetch_bytes`).
    FETCH_BYTES: 100_000,
    "client.id": "keylane",
}

CONSUMER_FORCED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

ANY_SIZE: dict[str, Any] = {"message.max.bytes": 1_000_000_000}
"""The client's own limit out of the way: its default of 1,000,000 lies below the brokers' (1,048,588), and topics may
take more. A batch of several records stays below `batch.size`."""

PRODUCER_DEFAULTS: dict[str, Any] = LEADERS | {
    "enable.idempotence": True,
    "socket.timeout.ms": SILENT_MS,
    # The next record of a key waits for this one's outputs, so waiting for more of them costs a key its rate (measured:
    # 4 partitions in PARTITION order 405 records/s with the default of 5 ms, 1,037 with 0); batches form by themselves.
    "linger.ms": 0,
    "client.id": "keylane",
    **NO_NEW_TOPICS,
    **ANY_SIZE,
}


TRANSACTIONAL_DEFAULTS: dict[str, Any] = {
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    # After the loss of its only broker a client that begins anew stays with a group coordinator that is gone, and sends
    # no offsets (docs/transactions.md).
    "metadata.recovery.strategy": "none",
    # Offsets in a transaction go to the group's coordinator. Where the one that librdkafka knows is dead, it asks for
    # another one only when one of its connections comes or goes, and the call's own timeout does not hold (2.16): it
    # would stand still until the node is back. So what waits in vain, or is idle, is closed, and comes again when it is
    # needed; and who coordinates is forgotten when it was not used for so long, as the names of metadata's age have it.
    "connections.max.idle.ms": 3_000,
    "metadata.max.age.ms": 3_000,
}


def consumer_settings(kafka: Mapping[str, Any], client_id: str | None) -> dict[str, Any]:
    """Settings for both of a consumer's clients."""
    ours = {key: value for key, value in kafka.items() if key not in PRODUCER_ONLY}
    return CONSUMER_DEFAULTS | ours | _identity(client_id) | CONSUMER_FORCED | {"logger": ClientLog()}


def member_settings(consumer: Mapping[str, Any]) -> dict[str, Any]:
    """Of the consumer's settings, those of the client that is the group's member and reads nothing."""
    return MEMBER_DEFAULTS | {key: value for key, value in consumer.items() if key not in STATISTICS}


def fetcher_settings(consumer: Mapping[str, Any]) -> dict[str, Any]:
    """Of the consumer's settings, those of the client that reads and takes no part in the group."""
    return reading({key: value for key, value in consumer.items() if key not in MEMBERS_ONLY})


def fetch_bytes(partitions: int, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """The setting of how much an answer may bring of each of so many partitions; empty where the default is right, or
    the user's own stands."""
    most = CONSUMER_DEFAULTS[FETCH_BYTES]
    each = max(LEAST_FETCH_BYTES, FETCH_BYTES_OF_ALL // max(1, partitions))
    return {} if each >= most or kafka.keys() & {FETCH_BYTES, ITS_ALIAS} else {FETCH_BYTES: each}


def reading(given: Mapping[str, Any]) -> dict[str, Any]:
    """These settings on top of `READER_DEFAULTS`, which give way: librdkafka refuses a fetch that is smaller than the
    largest record, and an answer that a broker may hold back for longer than a node may be silent would never come."""
    least_bytes, waits_ms = int(given.get("message.max.bytes", 0)), int(given.get("fetch.wait.max.ms", 0))
    defaults = READER_DEFAULTS | {
        "fetch.max.bytes": max(READER_DEFAULTS["fetch.max.bytes"], least_bytes),
        "socket.timeout.ms": max(SILENT_MS, waits_ms + SILENT_MS // 2),
    }
    return defaults | dict(given)


def producer_settings(kafka: Mapping[str, Any], client_id: str | None) -> dict[str, Any]:
    """Settings for the producer client: idempotent unless the pipeline says otherwise."""
    ours = {key: value for key, value in kafka.items() if key not in CONSUMER_ONLY}
    return PRODUCER_DEFAULTS | ours | _identity(client_id) | {"logger": ClientLog()}


def transactional_settings(kafka: Mapping[str, Any], client_id: str | None) -> dict[str, Any]:
    """Settings for a transactional producer, but for its id."""
    # A request is given up while its transaction can still go on; librdkafka refuses anything longer.
    timeout_ms = int(kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    silent = {"socket.timeout.ms": min(SILENT_MS, max(900, timeout_ms - 100))}
    return TRANSACTIONAL_DEFAULTS | producer_settings(silent | dict(kafka), client_id)


def transactional_id(pipeline: Pipeline) -> str:
    """The prefix, and what no other live member has: the static member's own id, or a new one (docs/adr/0051)."""
    prefix = pipeline.delivery.id_prefix if isinstance(pipeline.delivery, Transactional) else None
    return f"{prefix or pipeline.group_id}-{pipeline.kafka.get('group.instance.id') or uuid4()}"


def makes_topics(kafka: Mapping[str, Any]) -> bool:
    """Whether an output to a topic that does not exist is to make it, where the broker does so."""
    return str(kafka.get("allow.auto.create.topics", False)).lower() == "true"


def is_cooperative(kafka: Mapping[str, Any]) -> bool:
    """Whether rebalances are incremental: by the assignment strategy, or because KIP-848's protocol always is."""
    return (
        "cooperative" in str(kafka.get("partition.assignment.strategy", ""))
        or kafka.get("group.protocol") == "consumer"
    )


def _identity(client_id: str | None) -> dict[str, Any]:
    return {} if client_id is None else {"client.id": client_id}
