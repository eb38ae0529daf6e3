"""A `FencedLog` for tests that want one answer after the other."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Self

from keylane.coordinator.formats import encode_batch, encode_records
from keylane.coordinator.replicated.batches import read
from keylane.coordinator.replicated.journal import Fetched
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.kafka.fenced_log import FencedLog
from keylane.wire.batches import decode_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.coordinator.replicated.journal import Refused

WAIT_S = 60.0


class LogWriter:
    """One writer of one partition, whose id is the topic's. Thread safety: one thread at a time."""

    def __init__(self, settings: Mapping[str, object] | str, topic: str, partition: int = 0, **options: float) -> None:
        settings = {"bootstrap.servers": settings} if isinstance(settings, str) else settings
        self._log = FencedLog(settings, topic, partition, topic, lambda told: told(), **options)
        self.producer: Producer | None = None
        self._sequence = 0
        self._answers: queue.SimpleQueue[int | Refused] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        assert self._log.join(WAIT_S), "its threads have not ended"

    def init(self, expected: Producer | None = None) -> Producer | Refused:
        answers: queue.SimpleQueue[Producer | Refused] = queue.SimpleQueue()
        self._log.init(expected, answers.put)
        found = answers.get(timeout=WAIT_S)
        if isinstance(found, Producer):
            self.producer = found
            self._sequence = 0
        return found

    def append(self, *values: bytes) -> None:
        """One batch of these; `answer` tells what became of it."""
        assert self.producer is not None
        records = encode_records([(value, value) for value in values], int(time.time() * 1000))
        stamped = records._replace(
            producer_id=self.producer.producer_id, producer_epoch=self.producer.epoch, base_sequence=self._sequence
        )
        self._sequence += len(values)
        self._log.append(b"".join(encode_batch(stamped, 0)), self._answers.put)

    def answer(self) -> int | Refused:
        """The base offset of the oldest batch without one, or why there is none."""
        return self._answers.get(timeout=WAIT_S)

    def values(self) -> Sequence[bytes | None]:
        """All that is in the partition."""
        found: list[bytes | None] = []
        position = 0
        answers: queue.SimpleQueue[Fetched | Refused] = queue.SimpleQueue()
        while True:
            self._log.read(position, answers.put)
            fetched = answers.get(timeout=WAIT_S)
            assert isinstance(fetched, Fetched), fetched
            for place, batch in read(fetched.data, position):
                found += (one.value for one in decode_records(batch))
                position = place.next_offset
            if position >= fetched.end:
                return found
            assert fetched.data, f"nothing at offset {position}, and the end is {fetched.end}"
