"""Batches that arrive whole and whose records cannot be read: a client stands before one without a word.

librdkafka drops what it cannot read, and asks for it again, for ever. A broker refuses such a batch; one that does not,
or that took it before it did, serves it. So where a partition stands still although its log goes on, its next batch is
fetched and looked at here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import KeylaneError, PeerError
from keylane.kafka.fenced_log import LogClient
from keylane.kafka.places import for_records
from keylane.telling import logger_of
from keylane.wire.batches import BatchError, batches, decode_records
from keylane.wire.record_walk import RecordWalk, Wanted

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from keylane.kafka.faults import Faults

logger = logger_of("keylane.kafka")

Name = tuple[str, int]

AFTER_S = 10.0
"""How long a partition stands still before its next batch is looked at, and then before it is looked at again."""
AT_ONCE = 16
"""Partitions whose batches are looked at in one go: the others have their turn later."""


class _Stand(NamedTuple):
    offset: int
    """The next to be read."""
    since: float | None
    """From when on there was more; None: not seen yet."""


class UnreadableBatches:
    """Of the partitions that one client reads. Thread safety: the thread that polls it."""

    def __init__(self, kafka: Mapping[str, Any], faults: Faults) -> None:
        """`faults` is told of the first one that is found."""
        self._kafka = kafka
        self._faults = faults
        self._stands: dict[Name, _Stand] = {}
        self._looking: threading.Thread | None = None

    def reach(self, name: Name, offset: int) -> None:
        """It is read from here on, or everything before was read."""
        self._stands[name] = _Stand(offset, None)

    def forget(self, name: Name) -> None:
        """It is read no more."""
        self._stands.pop(name, None)

    def look(self, log_ends: Mapping[Name, int], waiting: Container[Name], now: float) -> None:
        """`waiting`: those that stand still for a known reason."""
        due: dict[Name, int] = {}
        for name, (offset, since) in self._stands.items():
            if name in waiting or log_ends.get(name, offset) <= offset:
                self._stands[name] = _Stand(offset, None)
            elif since is None:
                self._stands[name] = _Stand(offset, now)
            elif now - since >= AFTER_S and len(due) < AT_ONCE:
                due[name] = offset
        if due and (self._looking is None or not self._looking.is_alive()):
            for name, offset in due.items():
                self._stands[name] = _Stand(offset, now)
            self._looking = threading.Thread(target=self._look_at, args=(due,), name="keylane-look", daemon=True)
            self._looking.start()

    def _look_at(self, places: Mapping[Name, int]) -> None:
        try:
            with LogClient(for_records(self._kafka)) as client:
                for name, offset in places.items():
                    found = client.fetch(*name, offset)
                    problem = None if isinstance(found, int) else problem_at(name, offset, found.records)
                    if problem is not None:
                        self._faults.fail(problem)
                        return
        except KeylaneError as error:  # a login that only librdkafka has
            logger.debug("why partitions stand still cannot be looked at: %s", error)


def problem_at(name: Name, offset: int, fetched: bytes) -> PeerError | None:
    """Why the batch at this offset, the first of `fetched` that reaches it, cannot be read."""
    for position, header in batches(fetched):
        if header.last_offset < offset:
            continue
        batch = fetched[position : position + header.length]
        try:
            for _ in RecordWalk(batch, header, Wanted()).steps():
                pass
            outside = [
                one.offset
                for one in decode_records(batch)
                if not header.base_offset <= one.offset <= header.last_offset
            ]
        except BatchError as error:
            what = str(error)
        else:
            if not outside:
                return None
            what = f"a record has the offset {outside[0]}, and the batch ends at {header.last_offset}"
        topic, partition = name
        return PeerError(
            f"{topic}-{partition}@{offset}: the records up to offset {header.last_offset} cannot be read by any client "
            f"({what}); whoever wrote them has to write them anew; go on behind them with `keylane groups reset GROUP "
            f"--topic {topic}:{partition} --to-offset {header.next_offset}`"
        )
    return None
