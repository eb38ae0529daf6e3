"""How large a record may be: the broker judges, and who is refused learns by how much.

The idea: the client has a limit of its own, which by default lies below the brokers': it is raised out of the way. What
a topic takes is asked for only where something is too large for it, or may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from keylane.consumer.dead_letters import shorter
from keylane.errors import KeylaneError
from keylane.kafka.admin import Admin
from keylane.kafka.settings import CONSUMER_ONLY, PRODUCER_ONLY, STATISTICS
from keylane.pipeline import TRACKING_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.records import Output

TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}

LARGE_BYTES = 500_000
"""Letters below that are produced as they are: hardly a topic takes less, and one that does says so."""

OVERHEAD_BYTES = 120
"""What a batch has around its one record, at most; and each header is given so much of it again, in bytes, as lengths
take."""
HEADER_BYTES = 10

ANSWER_MS = 5_000


class Limits:
    """What topics take, each asked about once. Thread safety: none."""

    def __init__(self, kafka: Mapping[str, object]) -> None:
        self._kafka = kafka
        dropped = CONSUMER_ONLY | PRODUCER_ONLY | STATISTICS | TRACKING_SETTINGS.keys()
        self._asking = {name: value for name, value in kafka.items() if name not in dropped}
        self._known: dict[str, int | None] = {}

    def of(self, topic: str) -> int | None:
        """Bytes of a batch; None where the broker does not tell."""
        if topic not in self._known:
            try:
                found = Admin(self._asking, timeout_ms=ANSWER_MS).topic_settings(topic).get("max.message.bytes")
                self._known[topic] = None if found is None else int(found)
            except (KeylaneError, ValueError):  # no right to look, or nobody answers: it is said without it
                self._known[topic] = None
        return self._known[topic]

    def refusal(self, topic: str, size: int | None) -> str:
        """Why a record of so many bytes was refused as too large."""
        limit = self.of(topic)
        own = self._kafka.get("message.max.bytes")
        takes = "as its broker says" if limit is None else f"which takes {limit:,} (max.message.bytes)"
        if own is not None and (limit is None or int(str(own)) < limit):
            takes = f"and this client's own limit is {int(str(own)):,} (message.max.bytes): leave it out, or raise it"
        it = "it is" if size is None else f"its {size:,} bytes are"
        return f"{it} too large for topic {topic!r}, {takes}"

    def fitted(self, letter: Output) -> Output:
        """A dead letter, with less of keylane's texts where it would be too large with them. The record is whole."""
        if size_of(letter) < LARGE_BYTES or (limit := self.of(letter.topic)) is None:
            return letter
        while size_of(letter) > limit and (less := shorter(letter)) is not None:
            letter = less
        return letter


def size_of(output: Output) -> int:
    """Bytes of a batch with just this record, or a little more."""
    headers = [len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in output.headers]
    return len(output.key or b"") + len(output.value or b"") + sum(headers) + OVERHEAD_BYTES
