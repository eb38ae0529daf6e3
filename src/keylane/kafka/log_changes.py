"""`changes_of`: from where on logs have other records than those that somebody has read (KIP-320).

The idea: who has read a log knows the leader epoch of the newest record. Where the leader of now says that this epoch
ended below what was read (OffsetForLeaderEpoch), the log was cut there. librdkafka asks that when a leader changes
while it reads, and not where reading begins, so this does; in one request a leader, by a connection of keylane's own.
Where there can be none, the records tell it (`cut_search`).
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError, UsageError
from keylane.kafka.bulk import read_first
from keylane.kafka.cut_search import changes_by_reading, search
from keylane.kafka.fenced_log import NAMES, NOT_NOW
from keylane.kafka.open_transactions import NO_ANSWER, TransactionsClient
from keylane.kafka.places import SERVERS, for_records
from keylane.kafka.redriving import connecting
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire import transactions as api
from keylane.wire.primitives import array_length, int32, string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.kafka.open_transactions import Address
    from keylane.wire.primitives import FieldReader

logger = logger_of("keylane.kafka")

ASK_S = 10.0
"""How long a leader that moves, or does not answer, is asked again: others have answered just before."""

Name = tuple[str, int]
"""Topic and partition."""

_OFFSET_FOR_LEADER_EPOCH = (23, 3)
_CONSUMER, _ANY_EPOCH = int32(-2), int32(-1)


class Reached(NamedTuple):
    """How far somebody has read a log."""

    offset: int
    """The next one to read."""
    leader_epoch: int
    """Of the newest record that was read, or a later one."""
    log_start: int
    log_end: int
    has_map: bool = False
    """Whether offsets beyond the next one are complete."""


class EpochEnd(NamedTuple):
    error: int
    end: int
    """The offset at which the first later epoch begins, or the log ends; -1: the log never had this epoch."""


def changes_of(
    kafka: Mapping[str, Any], reached: Mapping[Name, Reached], pause: Callable[[], bool]
) -> dict[Name, int | None]:
    """From which offset on each log has other records than were read, or could be; None where it has none. Without the
    logs of which nobody can say it, which is logged. `pause` waits a moment between two questions, and returns whether
    to ask no more."""
    if not reached:
        return {}
    epochs = {name: one.leader_epoch for name, one in reached.items()}
    ends, reason = epoch_ends(kafka, epochs, pause)
    doubtful = {name: epochs[name] for name, end in ends.items() if end < reached[name].offset}
    if doubtful and not pause():  # a leader that is new may not know its own log's end yet
        again, _ = epoch_ends(kafka, doubtful, pause)
        ends |= {name: max(end, ends[name]) for name, end in again.items()}
    changes = {name: _change(kafka, name, reached[name], end) for name, end in ends.items()}
    if not_asked := {name: one for name, one in reached.items() if name not in changes}:
        changes |= _changes_by_reading(kafka, not_asked, reason)
    return changes


def _changes_by_reading(
    kafka: Mapping[str, Any], reached: Mapping[Name, Reached], reason: str
) -> dict[Name, int | None]:
    """What records tell. Without maps that speak of what is beyond the next offset: they are held against the records
    as those are read."""
    searches = {name: search(one.log_start, one.offset, one.leader_epoch) for name, one in reached.items()}
    found = changes_by_reading(str(kafka[SERVERS]), _reading(kafka), searches)
    if len(found) < len(reached):
        logger.info(
            "whether the logs of %d partitions were cut below what was committed cannot be told: %s",
            len(reached) - len(found),
            reason,
        )
    changes = {name: cut for name, cut in found.items() if cut is not None or not reached[name].has_map}
    if len(changes) < len(found):
        logger.info(
            "whether the logs of %d partitions were cut is seen as they are read, and not before: %s",
            len(found) - len(changes),
            reason,
        )
    return changes


def _change(kafka: Mapping[str, Any], name: Name, reached: Reached, end: int) -> int | None:
    """A later epoch may also have begun with what no consumer sees (ends of transactions, aborted records), and the
    next offset lies behind. A record there was never read."""
    cut = max(end, reached.log_start)
    if reached.offset == cut and not reached.has_map:
        return None
    if cut < reached.offset <= reached.log_end and not _has_record(kafka, name, cut, reached.offset):
        return reached.offset
    return cut


def _has_record(kafka: Mapping[str, Any], name: Name, start: int, stop: int) -> bool:
    return read_first(str(kafka[SERVERS]), *name, (start, stop), settings=_reading(kafka)) is not None


def _reading(kafka: Mapping[str, Any]) -> dict[str, Any]:
    level = {"isolation.level": kafka.get("isolation.level", "read_committed")}
    return {**connecting(for_records(kafka)), **level}


def epoch_ends(
    kafka: Mapping[str, Any], epochs: Mapping[Name, int], pause: Callable[[], bool]
) -> tuple[dict[Name, int], str]:
    """The end of each partition's epoch, -1 where its log never had it; without those of which nobody can say it, and
    why. `pause` as in `changes_of`."""
    left, reason = dict(epochs), ""
    ends: dict[Name, int] = {}
    give_up_at = monotonic() + ASK_S
    try:
        with _Client(for_records(kafka)) as client:
            while left:
                answers = client.ends(left)
                ends |= {name: one.end for name, one in answers.items() if one.error == codes.NONE}
                errors = {name: one.error for name, one in answers.items() if one.error != codes.NONE}
                left = {name: left[name] for name, error in errors.items() if error in NOT_NOW}
                if errors:
                    reason = ", ".join(sorted({NAMES.get(one, str(one)) for one in errors.values()}))
                if left and (monotonic() >= give_up_at or pause()):
                    break
    except (UsageError, PeerError) as error:  # a login that only librdkafka has; a broker from before KIP-320
        reason = str(error)
    return ends, reason


class _Client(TransactionsClient):
    """Asks the leaders of partitions. Thread safety: one thread."""

    def ends(self, epochs: Mapping[Name, int]) -> dict[Name, EpochEnd]:
        """An answer or an error for each."""
        topics = {topic for topic, _ in epochs}
        found = self._of_any(api.METADATA, _metadata(topics), _read_leaders)
        if isinstance(found, int):
            return dict.fromkeys(epochs, EpochEnd(found, -1))
        by_leader: dict[Address, list[Name]] = {}
        ends: dict[Name, EpochEnd] = {}
        for name in epochs:
            leader = found.get(name, codes.UNKNOWN_TOPIC_OR_PARTITION)
            if isinstance(leader, int):
                ends[name] = EpochEnd(leader, -1)
            else:
                by_leader.setdefault(leader, []).append(name)
        for address, names in by_leader.items():
            answer = self._ask(address, _OFFSET_FOR_LEADER_EPOCH, _ask_ends(names, epochs), _read_ends)
            answers = {} if isinstance(answer, int) else answer
            ends |= {name: answers.get(name, EpochEnd(NO_ANSWER, -1)) for name in names}
        return ends


def _metadata(topics: Iterable[str]) -> bytes:
    """Of these topics, which are not made by the asking."""
    names = [string(one) for one in topics]
    return array_length(len(names)) + b"".join(names) + b"\0"


def _read_leaders(reader: FieldReader) -> dict[Name, Address | int]:
    """Who leads each partition, or an error."""
    reader.int32()
    brokers: dict[int, Address] = {}
    for _ in reader.items():
        node = reader.int32()
        brokers[node] = (reader.string(), reader.int32())
        reader.nullable_string()
    reader.nullable_string()
    reader.int32()
    leaders: dict[Name, Address | int] = {}
    for _ in reader.items():
        topic_error, topic = reader.int16(), reader.string()
        reader.take(1)
        for _ in reader.items():
            error, partition, node = reader.int16(), reader.int32(), reader.int32()
            for _ in range(2):  # the replicas, and those in sync
                for _ in reader.items():
                    reader.int32()
            leaders[topic, partition] = brokers.get(node, topic_error or error or codes.LEADER_NOT_AVAILABLE)
    return leaders


def _ask_ends(names: Iterable[Name], epochs: Mapping[Name, int]) -> bytes:
    topics: dict[str, list[bytes]] = {}
    for topic, partition in names:
        topics.setdefault(topic, []).append(int32(partition) + _ANY_EPOCH + int32(epochs[topic, partition]))
    rows = (string(topic) + array_length(len(some)) + b"".join(some) for topic, some in topics.items())
    return _CONSUMER + array_length(len(topics)) + b"".join(rows)


def _read_ends(reader: FieldReader) -> dict[Name, EpochEnd]:
    ends = {}
    reader.int32()
    for _ in reader.items():
        topic = reader.string()
        for _ in reader.items():
            error, partition, _ = reader.int16(), reader.int32(), reader.int32()
            ends[topic, partition] = EpochEnd(error, reader.int64())
    return ends
