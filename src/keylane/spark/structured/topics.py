"""What the source asks brokers on the driver: which partitions there are, and which offsets a position means."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from keylane.errors import BrokerUnavailableError, MetadataError, PeerError, UnknownMapError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.moving import check_no_commits_at_brokers
from keylane.kafka.places import are_apart
from keylane.offsets import decode
from keylane.spark.structured.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.spark.structured.options import Position, SourceOptions, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")
Offsets = dict["TopicPartition", int]


class Topics:
    """The topics of one query. Thread safety: one thread at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin = Admin(options.settings)
        self._read_committed = options.settings.get("isolation.level") == "read_committed"
        self._has_answered = False

    def partitions(self) -> list[TopicPartition]:
        """Those that the query reads now. Raises `UsageError` when a topic that it names does not exist."""
        subscription = self._options.subscription
        return subscription.of(self._ask(lambda: self._admin.topics(subscription.named)))

    def log_starts(self, partitions: list[TopicPartition]) -> Offsets:
        return self._known(partitions, self._ask(lambda: self._admin.log_starts(partitions)))

    def log_ends(self, partitions: list[TopicPartition]) -> Offsets:
        """The end of what may be read, by the isolation level."""
        ask = self._admin.log_ends
        return self._known(partitions, self._ask(lambda: ask(partitions, read_committed=self._read_committed)))

    def resolve(
        self, position: Position, partitions: list[TopicPartition]
    ) -> tuple[Offsets, dict[TopicPartition, tuple[int, str]]]:
        """The offset that a position means in each partition, and for `committed` the maps of the group's commits.

        Raises `UsageError` when the position does not name every partition, or a time lies after the last record and
        `startingOffsetsByTimestampStrategy` is `error`; `PeerError` for offsets outside the log, unless data loss is
        accepted.
        """
        position.check_covers(partitions)
        starts, ends = self.log_starts(partitions), self.log_ends(partitions)
        if position.name == "earliest":
            return starts, {}
        if position.name == "latest":
            return ends, {}
        if position.name == "committed":
            return self._committed(partitions, starts, ends)
        if position.offsets is not None:
            named = {EARLIEST: starts, LATEST: ends}
            wanted = {name: named[one][name] if one in named else one for name, one in position.offsets.items()}
            return self._within(wanted, starts, ends, position.option), {}
        return self._at_times(position, partitions, ends), {}

    def _at_times(self, position: Position, partitions: list[TopicPartition], ends: Offsets) -> Offsets:
        times = position.times if position.times is not None else dict.fromkeys(partitions, position.time or 0)
        found = self._ask(lambda: self._admin.offsets_at(times))
        missing = sorted(name for name, offset in found.items() if offset is None)
        if missing and position.option.startswith("starting") and self._options.no_offset_at_time == "error":
            topic, partition = missing[0]
            raise UsageError(
                f"{position.option}: {topic}-{partition} has no record at or after {times[missing[0]]}: set "
                "startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return {name: ends[name] if offset is None else offset for name, offset in found.items()}

    def _committed(
        self, partitions: list[TopicPartition], starts: Offsets, ends: Offsets
    ) -> tuple[Offsets, dict[TopicPartition, tuple[int, str]]]:
        """Where the group stands; a partition without a commit starts at its log start, so that nothing is skipped."""
        group = str(self._options.group_id)
        found = self._ask(lambda: self._admin.committed_offsets(group))
        commits = {name: found[name] for name in partitions if name in found}
        self._check_brokers(group, [name for name in partitions if name not in found])
        offsets = self._within({name: one.offset for name, one in commits.items()}, starts, ends, f"group {group!r}")
        done = {}
        for name, commit in commits.items():
            if not commit.metadata:
                continue
            try:
                known = decode(commit.metadata, commit.offset)
            except UnknownMapError as error:
                raise PeerError(
                    f"group {group!r}, {name[0]}-{name[1]}: {error}; use another kafka.group.id, or startingOffsets by "
                    "partition"
                ) from None
            except MetadataError as error:
                logger.warning("group %r, %s-%d: %s; its offset alone counts", group, *name, error)
                continue
            if known.span:
                done[name] = (commit.offset, commit.metadata)
        return {name: offsets.get(name, starts[name]) for name in partitions}, done

    def _check_brokers(self, group: str, names: list[TopicPartition]) -> None:
        """The offset servers have no commit for these. Raises `UsageError` where the brokers have one."""
        settings = self._options.settings
        if not names or not are_apart(settings):
            return
        brokers, way_out = self._admin.at_brokers, "startingOffsets=earliest or latest"
        self._ask(lambda: check_no_commits_at_brokers(brokers, group, settings, names, way_out))

    def _within(self, offsets: Offsets, starts: Offsets, ends: Offsets, what: str) -> Offsets:
        kept = {}
        for name, offset in offsets.items():
            kept[name] = min(max(offset, starts[name]), ends[name])
            if kept[name] == offset:
                continue
            text = f"{what}: {name[0]}-{name[1]} has offsets {starts[name]} to {ends[name]}, and {offset} is outside"
            if self._options.fail_on_data_loss:
                raise PeerError(f"{text}; set failOnDataLoss=false to go on at {kept[name]}")
            logger.warning("%s; going on at %d (failOnDataLoss=false)", text, kept[name])
        return kept

    def _known(self, partitions: list[TopicPartition], found: dict[TopicPartition, int | None]) -> Offsets:
        """Without those that were deleted since they were listed."""
        return {name: offset for name in partitions if (offset := found[name]) is not None}

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask; a broker that has answered before is asked again when it does not (`fetchOffset.numRetries`).

        One that never has is told at once, after the time of one question: as a rule its address is wrong.
        """
        left = self._options.retries if self._has_answered else 0
        while True:
            try:
                found = question()
            except BrokerUnavailableError as error:
                if not left:
                    raise
                left -= 1
                logger.warning("%s (will be asked again)", error)
                time.sleep(self._options.retry_interval_ms / 1000)
            else:
                self._has_answered = True
                return found
