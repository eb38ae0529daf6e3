"""The options that the coordinator reads, under Kafka's names; the broker's configuration has them all."""

from __future__ import annotations

from typing import Protocol


class CoordinatorOptions(Protocol):
    """Kafka's broker options with dots as underscores."""

    @property
    def message_max_bytes(self) -> int: ...
    @property
    def offset_metadata_max_bytes(self) -> int: ...
    @property
    def offsets_topic_num_partitions(self) -> int: ...
    @property
    def group_min_session_timeout_ms(self) -> int: ...
    @property
    def group_max_session_timeout_ms(self) -> int: ...
    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...
