"""`changes_by_reading`: from where on logs have other records than somebody has read, where no leader can be asked.

The idea: with a login that only librdkafka has, records can be read, and nothing else. Within one log leader epochs
rise. So a record below what was read that is of a later epoch than all that was read was never read: the log was cut
there. Where the first one is, is found as in a sorted list, by some reads of one record.
"""

from __future__ import annotations

from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TopicPartition

from keylane.kafka.bulk import reader_of
from keylane.kafka.faults import PARTITION_END, PASSING
from keylane.kafka.leaders import Leaders

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from keylane.kafka.clients import Consumer

    Name = tuple[str, int]
    """Topic and partition."""
    Search = Generator[int, "Found | None", int | None]
    """Offsets; sent back is the first record from there on, None where the log has none. Returns from where on there
    are other records, None: nowhere."""

READ_S = 10.0
"""How long it may take: as long as leaders are asked where they can be."""
POLL_S = 0.1
MANY = 1_000
_SMALL: dict[str, Any] = {
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 65_536,  # one record is wanted; a larger batch comes nonetheless
    "fetch.wait.max.ms": 10,
}


class Found(NamedTuple):
    """A record."""

    offset: int
    leader_epoch: int


def search(log_start: int, offset: int, leader_epoch: int) -> Search:
    """Of a log that was read below this offset, where no record is of a later epoch. It goes back from there in steps
    that double, since as a rule the first record that it finds ends it."""
    low, high, step = log_start, offset, 1
    is_cut = is_bounded = False
    while low < high:
        at = (low + high) // 2 if is_bounded else max(low, high - step)
        found = yield at
        if found is None or found.leader_epoch > leader_epoch:
            high = at
            step *= 2
            is_cut = is_cut or (found is not None and found.offset < offset)
        elif found.offset >= offset:
            return None
        else:
            low = found.offset + 1
            is_bounded = True
    return high if is_cut else None


def changes_by_reading(
    servers: str, settings: Mapping[str, Any], searches: Mapping[Name, Search]
) -> dict[Name, int | None]:
    """What each of these finds. Without those of which nothing can be read in time. Raises `UsageError` for settings
    that the client refuses."""
    changes: dict[Name, int | None] = {}
    until = monotonic() + READ_S
    with closing(reader_of(servers, {**settings, **_SMALL})) as client:
        client.poll(0)  # a login by callback is asked for here
        Leaders(client).learn({topic for topic, _ in searches})
        sought = _go_on(dict.fromkeys(searches), searches, changes)
        while sought:
            found = _read_first(client, sought, until)
            sought = _go_on(found, searches, changes)
    return changes


def _go_on(
    found: Mapping[Name, Found | None], searches: Mapping[Name, Search], changes: dict[Name, int | None]
) -> dict[Name, int]:
    """Tell the searches what was found; the next offset of each that goes on."""
    sought = {}
    for name, one in found.items():
        try:
            sought[name] = searches[name].send(one)
        except StopIteration as over:
            changes[name] = over.value
    return sought


def _read_first(client: Consumer, sought: Mapping[Name, int], until: float) -> dict[Name, Found | None]:
    """The first record from each offset on, None at a log's end; without those of which neither comes in time."""
    client.assign([TopicPartition(*name, offset) for name, offset in sought.items()])
    found: dict[Name, Found | None] = {}
    left = set(sought)
    while left and monotonic() < until:
        for message in client.consume(1, POLL_S) + client.consume(MANY, 0):
            name: Any = message.topic(), message.partition()
            error = message.error()
            if name not in left or (error is not None and error.code() in PASSING):
                continue
            left.discard(name)
            offset, epoch = message.offset(), message.leader_epoch()
            if error is not None and error.code() == PARTITION_END:
                found[name] = None
            elif error is None and offset is not None and epoch is not None:  # None: of a batch in an old format
                found[name] = Found(offset, epoch)
    return found
