"""`keylane records park`: a dead letter for each record first, and then the map that has it complete.

The idea: a letter that waits in the dead-letter topic stands for its record, whoever wrote it. So whatever happens
between the two, nothing is lost: the record is not complete yet, and when it is parked once more its letter is found,
and not written again (docs/adr/0105).
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from keylane.cli.dlq_letters import queue_of
from keylane.consumer.dead_letters import parked
from keylane.desk.letters import is_letter_of, letters
from keylane.errors import UsageError
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.missing_topics import NO_NEW_TOPICS
from keylane.kafka.redriving import connecting
from keylane.kafka.sizes import Limits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from keylane.desk.letters import Queue
    from keylane.desk.records import Found


class Parking:
    """To one dead-letter topic."""

    def __init__(self, queue: Queue, why: str) -> None:
        """`why` is what the letters say."""
        self.topic = queue.topic
        self.kafka = queue.kafka
        self._queue = queue
        self._why = why

    def check(self, found: Iterable[Found]) -> None:
        """Raises `UsageError` for a record of the topic itself: its letter would be the next one to be read."""
        for one in found:
            if one.place.topic == self.topic:
                raise UsageError(f"{one.place}: it is in the dead-letter topic itself: name another one with --dlq")

    def write(self, found: Iterable[Found]) -> int:
        """See that each has its letter; returns how many had it already. Raises `PeerError` when one was not taken."""
        wanted = {one.place: one for one in found}
        there = self._waiting(wanted.values())
        limits = Limits(self.kafka)
        with BulkProducer(self.kafka["bootstrap.servers"], {**NO_NEW_TOPICS, **connecting(self.kafka)}) as producer:
            for place, one in wanted.items():
                if place not in there:
                    assert one.record is not None, "what the log has no longer is refused"
                    producer.produce(limits.fitted(parked(one.record, self.topic, self._why)))
        return len(there)

    def _waiting(self, found: Iterable[Found]) -> set[tuple[str, int, int]]:
        """Those that have a letter which no redrive has sent back."""
        wanted = {tuple(one.place): one.record for one in found}
        back = self._queue.redriven()
        there: set[tuple[str, int, int]] = set()
        for record, letter in letters(self._queue):
            death = letter.death
            if death.topic is None or death.partition is None or death.offset is None:
                continue
            place = (death.topic, death.partition, death.offset)
            of = wanted.get(place)
            is_back = record.partition in back and back[record.partition].is_complete(record.offset)
            if of is not None and not is_back and is_letter_of(record, death, of):
                there.add(place)
        return there


def parking_of(args: argparse.Namespace) -> Parking:
    """Where `--dlq` or `--pipeline` says, with what the letters say. Raises `UsageError`."""
    by = f"by {getpass.getuser()}@{socket.gethostname()}"
    queue = queue_of(args, args.dlq)
    queue = replace(queue, group=f"keylane-redrive-{queue.topic}")  # and not the group whose records these are
    return Parking(queue, by if args.reason is None else f"{by}: {args.reason}")
