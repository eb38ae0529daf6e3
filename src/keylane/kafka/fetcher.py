"""`Fetcher`: the Kafka client that reads the assigned partitions, and takes no part in the group.

The idea: librdkafka stops fetching everything that a client has while its group rebalances, and drops what it has
prefetched. So the group has a client of its own (`keylane.kafka.group_member`), and this one is told what to read; what
a rebalance leaves alone is read on without a pause (docs/adr/0008).
"""

from __future__ import annotations

from itertools import groupby
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Message, TopicPartition

from keylane.consumer.ports import Polled
from keylane.errors import PeerError
from keylane.kafka.faults import DAMAGED, NO_PARTITION, OUT_OF_RANGE, PARTITION_END, damage_of
from keylane.kafka.leaders import Leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.consumer.partition import Start
    from keylane.kafka.faults import Faults
    from keylane.kafka.logs import Logs


def consume_some(client: Consumer, most: int, timeout_s: float) -> list[Any]:
    """What is there; when that is nothing, one that comes within the time, and what is there then. In one call, the
    client would wait until there are as many as `most`."""
    messages: list[Any] = client.consume(most, 0)
    if not messages:
        messages = client.consume(1, timeout_s)
        if messages and most > 1:
            messages += client.consume(most - 1, 0)
    return messages


class Fetcher:
    """Reads partitions from given positions.

    Thread safety: `assign` and `unassign` are for any thread and take effect inside the next `poll`; everything else
    is the intake thread's.
    """

    def __init__(
        self, client: Consumer, logs: Logs, faults: Faults, missing: Callable[[str], None] = lambda _: None
    ) -> None:
        """`missing` is told of topics that a broker does not know."""
        self._client = client
        self._logs = logs
        self._faults = faults
        self._missing = missing
        self._leaders = Leaders(client)
        self._requests: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._epochs: dict[tuple[str, int], int] = {}
        """The partitions that are read, and the epoch of each assignment."""
        self._topics: set[str] = set()
        """All that were ever read."""
        self._paused: set[tuple[str, int]] = set()

    # --- any thread ---

    def assign(self, starts: list[Start]) -> None:
        """Read these too. A partition that was read before must have been unassigned."""
        self._requests.put((self._assign, starts))

    def unassign(self, names: list[tuple[str, int]]) -> None:
        self._requests.put((self._unassign, names))

    # --- the intake thread ---

    def expect(self, topic: str) -> None:
        """An assignment of this topic may come: connect before it does."""
        self._leaders.learn([topic])

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        """See `ConsumerPort.poll`."""
        for_assignment_s = 0 if self._epochs else timeout_s  # nothing else can come first
        self._obey(for_assignment_s)
        if max_records <= 0:
            return None
        messages = consume_some(self._client, max_records, timeout_s - for_assignment_s)
        return self._by_partition(messages) if messages else None

    def pause(self, names: Iterable[tuple[str, int]]) -> None:
        self._obey()
        if ours := self._ours(names):
            self._client.pause(ours)
            self._paused.update((one.topic, one.partition) for one in ours)

    def resume(self, names: Iterable[tuple[str, int]]) -> None:
        self._obey()
        if ours := self._ours(names):
            self._client.resume(ours)
            self._paused.difference_update((one.topic, one.partition) for one in ours)

    def log_ends(self) -> Mapping[tuple[str, int], int]:
        ends = {}
        for name in self._epochs:
            _, high = self._client.get_watermark_offsets(TopicPartition(*name), cached=True)
            if high >= 0:  # below: nothing was fetched yet
                ends[name] = high
        return ends

    def close(self) -> None:
        self._client.close()

    def _obey(self, timeout_s: float = 0) -> None:
        """Carry out what was asked for since the last poll; wait so long for the first."""
        try:
            while True:
                do, argument = self._requests.get(timeout=timeout_s)
                timeout_s = 0
                do(argument)
        except Empty:
            pass

    def _assign(self, starts: list[Start]) -> None:
        positions = [TopicPartition(one.topic, one.partition, max(one.offsets.base, one.log_start)) for one in starts]
        self._leaders.learn(one.topic for one in starts)
        self._client.incremental_assign(positions)
        self._client.resume(positions)  # librdkafka keeps a pause over an assignment; a new one has none
        for one in starts:
            self._epochs[one.topic, one.partition] = one.epoch
            self._topics.add(one.topic)

    def _unassign(self, names: list[tuple[str, int]]) -> None:
        self._client.incremental_unassign(self._ours(names))
        for name in names:
            self._epochs.pop(name, None)
            self._paused.discard(name)

    def _ours(self, names: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Those that were not taken from us since they were asked for."""
        return [TopicPartition(*name) for name in names if name in self._epochs]

    def _by_partition(self, messages: list[Any]) -> Polled:
        polled = Polled()
        if any(map(Message.error, messages)):
            for message in messages:
                if message.error() is not None:
                    self._on_event(message, polled)
            messages = [message for message in messages if message.error() is None]
        lists: dict[Any, list[Any]] = {}  # of topic and partition
        one_topic = len(self._topics) == 1  # then messages need not be asked for it
        for topic, of_topic in [(*self._topics, messages)] if one_topic else groupby(messages, Message.topic):
            for partition, run in groupby(of_topic, Message.partition):
                lists.setdefault((topic, partition), []).extend(run)
        for name, some in lists.items():
            polled.count += len(some)
            if name in self._epochs:
                polled.batches.append((name, self._epochs[name], some))
        return polled

    def _on_event(self, message: Any, polled: Polled) -> None:
        """A message that is not a record: the end of a partition, or an error."""
        error = message.error()
        name = (message.topic(), message.partition())
        if error.code() == PARTITION_END:
            if name in self._epochs:
                polled.ends.append((name, self._epochs[name], message.offset()))
        elif error.code() == OUT_OF_RANGE:
            if name in self._epochs:
                if message.offset() is None:
                    raise PeerError(_cut(name, f"its log was cut below what was read of it ({error.str()})"))
                self._out_of_range(name, message.offset(), polled)
        elif error.code() in DAMAGED:
            # What the client reads on behind it would make the damaged records look like ones that are not there.
            self._epochs.pop(name, None)
            self._faults.fail(damage_of(message))
        else:
            self._faults.report(error)
            if error.code() in NO_PARTITION:
                self._missing(name[0])

    def _out_of_range(self, name: tuple[str, int], position: int, polled: Polled) -> None:
        """The log has nothing at the position: retention overtook it, or the log was cut."""
        log_start, log_end = self._logs.bounds(*name)
        if position > log_end:
            raise PeerError(_cut(name, f"the position {position} is beyond the end of the log at {log_end}"))
        if position < log_start:
            polled.log_starts.append((name, self._epochs[name], log_start))
        self._move(name, max(position, log_start))

    def _move(self, name: tuple[str, int], position: int) -> None:
        """Read on from this position. `seek` does not do it: it is refused where the client has stopped fetching."""
        moved = [TopicPartition(*name, position)]
        self._client.incremental_unassign(moved)
        self._client.incremental_assign(moved)
        if name in self._paused:
            self._client.pause(moved)


def _cut(name: tuple[str, int], what: str) -> str:
    return (
        f"{name[0]}-{name[1]}: {what} (was the topic made anew, or its log cut?): reset the group's offset, or use "
        "another group.id"
    )
