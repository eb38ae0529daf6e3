"""`MockCluster`: librdkafka's own three nodes inside this process, which move and go away at a word.

For what clients do in a fail-over, not for what brokers say: there are no disks, and no elections but those called for.
"""

from __future__ import annotations

import ctypes
from typing import Any, Self

from confluent_kafka import Producer

from keylane.kafka.exact import _handle, _library


class MockCluster:
    """Three nodes, which run until the block ends."""

    def __init__(self) -> None:
        self._owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
        self._cluster = _library.rd_kafka_handle_mock_cluster(_handle(self._owner))
        _library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._owner  # ends them

    @property
    def servers(self) -> list[str]:
        """By node, from node 1 on."""
        text: bytes = _library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return text.decode().split(",")

    def create(self, topic: str, partitions: int = 1) -> None:
        assert _library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 3) == 0

    def lead(self, topic: str, node: int, partition: int = 0) -> None:
        assert _library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, node) == 0

    def coordinate(self, kind: str, key: str, node: int) -> None:
        """`kind` is `group` or `transaction`."""
        assert _library.rd_kafka_mock_coordinator_set(self._cluster, kind.encode(), key.encode(), node) == 0

    def kill(self, node: int) -> None:
        assert _library.rd_kafka_mock_broker_set_down(self._cluster, node) == 0

    def start(self, node: int) -> None:
        assert _library.rd_kafka_mock_broker_set_up(self._cluster, node) == 0

    def hang(self, node: int) -> None:
        """It takes connections and requests, and its answers take ten minutes."""
        assert _library.rd_kafka_mock_broker_set_rtt(self._cluster, node, 600_000) == 0


def _declare() -> None:
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_handle_mock_cluster": (pointer, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, number]),
        "rd_kafka_mock_topic_create": (ctypes.c_int, [pointer, text, ctypes.c_int, ctypes.c_int]),
        "rd_kafka_mock_partition_set_leader": (ctypes.c_int, [pointer, text, number, number]),
        "rd_kafka_mock_coordinator_set": (ctypes.c_int, [pointer, text, text, number]),
        "rd_kafka_mock_broker_set_down": (ctypes.c_int, [pointer, number]),
        "rd_kafka_mock_broker_set_up": (ctypes.c_int, [pointer, number]),
        "rd_kafka_mock_broker_set_rtt": (ctypes.c_int, [pointer, number, ctypes.c_int]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(_library, name)
        function.restype, function.argtypes = result, arguments


_declare()
