"""`SinkRows`: the rows of a batch that a sink writes, by column. Pure."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keylane.kafka.bulk import BulkProducer

    Headers = tuple[tuple[str, bytes | None], ...]


class SinkRows(NamedTuple):
    """Columns of one length."""

    topics: str | Sequence[str]
    """One for all rows, or each row's own."""
    keys: Sequence[bytes | None] | None
    """None: no row has one; so are the others."""
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None
    partitions: Sequence[int | None] | None = None
    has_nulls: bool = True
    """Whether there may be any among keys and values."""

    @property
    def are_alike(self) -> bool:
        """Whether they differ in the bytes of key and value alone."""
        shared = isinstance(self.topics, str) and self.headers is None and self.partitions is None
        return shared and not self.has_nulls

    def each(self) -> Iterable[tuple[str, Headers, int | None, bytes | None, bytes | None]]:
        """Topic, headers, partition, key and value of each row."""
        return zip(
            repeat(self.topics) if isinstance(self.topics, str) else self.topics,
            repeat(()) if self.headers is None else self.headers,
            repeat(None) if self.partitions is None else self.partitions,
            repeat(None) if self.keys is None else self.keys,
            self.values,
            strict=False,
        )

    @property
    def names(self) -> set[str]:
        """The topics."""
        topics = [self.topics] if isinstance(self.topics, str) else self.topics
        return set(topics) if self.values else set()

    def produce(self, producer: BulkProducer) -> None:
        """Hands all rows over. Raises what `BulkProducer.produce` does."""
        if isinstance(self.topics, str) and self.headers is None and self.partitions is None:
            producer.produce_columns(self.topics, self.keys, self.values)
        else:
            producer.produce_all(self.outputs())

    def outputs(self) -> Iterator[Output]:
        return (Output(topic, key, value, headers, where) for topic, headers, where, key, value in self.each())
