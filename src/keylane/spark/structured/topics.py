"""What the source asks brokers on the driver: which partitions there are, and which offsets a position means."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from keylane.consumer.start import MIRRORS, Committed, StartRule, complete_count, cut_at
from keylane.consumer.start_report import report_starts
from keylane.errors import BrokerUnavailableError, MetadataError, PeerError, UnknownMapError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.log_changes import Reached, changes_of
from keylane.kafka.logs import ASK_AGAIN_S
from keylane.kafka.moving import check_no_commits_at_brokers
from keylane.kafka.places import are_apart
from keylane.offsets import OffsetMap, decode, encode
from keylane.spark.structured.options import EARLIEST, LATEST
from keylane.spark.structured.plans import still_there
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.spark.structured.options import Position, SourceOptions, TopicPartition
    from keylane.spark.structured.plans import Plan

logger = logger_of(__name__)

T = TypeVar("T")
Offsets = dict["TopicPartition", int]


def _pause() -> bool:
    """Between two questions; more may follow."""
    time.sleep(ASK_AGAIN_S)
    return False


class Topics:
    """The topics of one query. Thread safety: one thread at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin = Admin(options.settings)
        self._read_committed = options.settings.get("isolation.level") == "read_committed"
        self._has_answered = False
        self._has_compared_ids = False
        self.epochs: dict[TopicPartition, int] = {}
        """Of the leaders that told the log ends last, where they have one."""
        self._compared: dict[TopicPartition, tuple[int, int]] = {}
        """The epochs of partitions that `changes` has compared last: asked once, they stay what they are."""

    def partitions(self) -> list[TopicPartition]:
        """Those that the query reads now. Raises `UsageError` when a topic that it names does not exist."""
        subscription = self._options.subscription
        return subscription.of(self._ask(lambda: self._admin.topics(subscription.named)))

    def log_starts(self, partitions: list[TopicPartition]) -> Offsets:
        return self._known(partitions, self._ask(lambda: self._admin.log_starts(partitions)))

    def log_ends(
        self, partitions: list[TopicPartition], standing: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """The end of what may be read, by the isolation level; not below where a query stands, unless the log itself
        ends below that: it may have begun behind a transaction that is open."""
        ends = self._log_ends(partitions, read_committed=self._read_committed)
        ahead = {name: at for name, at in (standing or {}).items() if name in ends and at > ends[name]}
        if self._read_committed and ahead:
            written = self._log_ends(list(ahead), read_committed=False)
            ends |= {name: max(ends[name], min(at, written[name])) for name, at in ahead.items() if name in written}
        return ends

    def _log_ends(self, partitions: list[TopicPartition], *, read_committed: bool) -> Offsets:
        ask = self._admin.led_log_ends
        led = self._ask(lambda: ask(partitions, read_committed=read_committed))
        self.epochs |= {
            name: one.leader_epoch for name, one in led.items() if one is not None and one.leader_epoch >= 0
        }
        return {name: one.offset for name in partitions if (one := led[name]) is not None}

    def ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Of their topics, where the brokers tell them."""
        return self._ask(lambda: self._admin.topic_ids({topic for topic, _ in partitions}))

    def ids_for(self, before: Plan, ends: Offsets, *, carries: bool = False) -> dict[str, str] | None:
        """The same, of a plan and of what may follow it. None where nothing follows: no record is new, none that is
        carried is due (`carries`), and the topics were looked at before."""
        if ends == before.next and not carries and self._has_compared_ids:
            return None
        self._has_compared_ids = True
        return self.ids({*before.next, *ends})

    def still_there(self, plan: Plan) -> Plan:
        """What is to be read of a plan that another run of the query has made. Raises `PeerError` as `still_there`."""
        names = list(plan.next)
        starts, ends = self.log_starts(names), self.log_ends(names)
        there = {name: end for name, end in ends.items() if name in starts}
        changes, ids = self.changes(plan, starts, there), self.ids(plan.next)
        return still_there(plan, there, changes, ids, fail_on_data_loss=self._options.fail_on_data_loss)

    def changes(self, plan: Plan, starts: Offsets, ends: Offsets) -> Offsets:
        """From which offset on logs have other records than those that a plan reads, or have none; `starts` and `ends`
        are the logs' of now."""
        done = plan.done.keys()
        reached = {
            name: Reached(offset, plan.epochs.get(name, -1), starts[name], ends[name], has_map=name in done)
            for name, offset in plan.next.items()
            if name in ends
        }
        return self._changes(reached)

    def _changes(self, reached: Mapping[TopicPartition, Reached]) -> Offsets:
        """Only a log whose leader has changed can have other records."""
        asked = {
            name: one
            for name, one in reached.items()
            if one.leader_epoch not in (-1, now := self.epochs.get(name, -1))
            and self._compared.get(name) != (one.leader_epoch, now)
        }
        found = changes_of(self._options.settings, asked, _pause)
        unchanged = {name for name, change in found.items() if change is None}
        self._compared |= {name: (asked[name].leader_epoch, self.epochs.get(name, -1)) for name in unchanged}
        return {name: change for name, change in found.items() if change is not None}

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
        if position.option.startswith("starting"):  # it may be in a transaction that is open: then it comes later
            return {name: ends[name] if offset is None else offset for name, offset in found.items()}
        return {name: ends[name] if offset is None else min(offset, ends[name]) for name, offset in found.items()}

    def _committed(
        self, partitions: list[TopicPartition], starts: Offsets, ends: Offsets
    ) -> tuple[Offsets, dict[TopicPartition, tuple[int, str]]]:
        """Where the group stands; a partition without a commit starts at its log start, so that nothing is skipped."""
        group = str(self._options.group_id)
        found = self._ask(lambda: self._admin.committed_offsets(group))
        commits = {
            name: Committed(*name, one.offset, one.metadata, starts[name], ends[name], leader_epoch=one.leader_epoch)
            for name, one in found.items()
            if name in starts and name in ends
        }
        self._check_brokers(group, [name for name in partitions if name not in found])
        changes = self._changes(
            {
                name: Reached(one.offset or 0, one.leader_epoch, one.log_start, one.log_end, has_map=bool(one.metadata))
                for name, one in commits.items()
            }
        )
        offsets = self._within({
            name: self._unchanged(group, one, changes.get(name)) for name, one in commits.items()
        }, starts, ends, f"group {group!r}")  # fmt: skip
        done = {}
        for name, one in commits.items():
            known = self._map(group, one, changes.get(name))
            if known is not None and known.span:
                done[name] = (known.base, encode(known) if name in changes else one.metadata)
        self._report(group, partitions, commits, offsets, starts, ends)
        return {name: offsets.get(name, starts[name]) for name in partitions}, done

    def _check_brokers(self, group: str, names: list[TopicPartition]) -> None:
        """The offset servers have no commit for these. Raises `UsageError` where the brokers have one."""
        settings = self._options.settings
        if not names or not are_apart(settings):
            return
        brokers, way_out = self._admin.at_brokers, "startingOffsets=earliest or latest"
        self._ask(lambda: check_no_commits_at_brokers(brokers, group, settings, names, way_out))

    def _unchanged(self, group: str, commit: Committed, change: int | None) -> int:
        """The committed offset, or where the log was cut below it. Raises `PeerError`, unless that is accepted."""
        assert commit.offset is not None, commit
        if change is None or commit.offset <= change:
            return commit.offset
        text = (
            f"group {group!r} has committed {commit.offset} for {commit.name}, and its log was cut at {change} since "
            "then, as by an unclean leader election: from there on there are other records, or none"
        )
        if self._options.fail_on_data_loss:
            raise PeerError(f"{text}; set failOnDataLoss=false to go on at {change}")
        logger.warning("%s; going on at %d (failOnDataLoss=false)", text, change)
        return change

    def _map(self, group: str, commit: Committed, change: int | None) -> OffsetMap | None:
        """What the group has complete beyond its offset; None where nothing is, or is believed."""
        assert commit.offset is not None, commit
        try:
            known = decode(commit.metadata, commit.offset)
        except UnknownMapError as error:
            raise PeerError(
                f"group {group!r}, {commit.name}: {error}; use another kafka.group.id, or startingOffsets by partition"
            ) from None
        except MetadataError as error:
            logger.warning("group %r, %s: %s; its offset alone counts", group, commit.name, error)
            return None
        if commit.origin == "copied" and self._options.on_copied_map != "believe":
            if self._options.on_copied_map == "fail":
                raise PeerError(
                    f"group {group!r}, {commit.name}: the commit of offset {commit.offset} was copied by another "
                    "program, and its offset map may speak of other records: set onCopiedMap=run_again to read up to "
                    f"{complete_count(known)} complete records again, or believe where both logs have the same offsets "
                    f"({MIRRORS})"
                )
            return None
        if change is None or known.highest_completed < change:
            return known
        return cut_at(known, change) if change > commit.offset else None

    def _report(
        self,
        group: str,
        partitions: list[TopicPartition],
        commits: Mapping[TopicPartition, Committed],
        offsets: Offsets,
        starts: Offsets,
        ends: Offsets,
    ) -> None:
        rule = StartRule(group, "earliest", on_copied_map=self._options.on_copied_map)
        none = {
            name: Committed(*name, None, "", starts[name], ends[name]) for name in partitions if name not in commits
        }
        report_starts(rule, [
            (one, OffsetMap(offsets.get(name, starts[name]))) for name, one in {**commits, **none}.items()
        ])  # fmt: skip

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
