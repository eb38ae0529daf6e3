"""`Starts`: where partitions start, asked of the group, of the log and of the user, and committed before anything runs.

The idea: `keylane.consumer.start` decides; here is who is asked for what it needs. With `External` the user's
function takes the group's place, and nothing is committed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from keylane.consumer.snapshot import some_of
from keylane.consumer.start import Committed, Start, StartRule
from keylane.consumer.start_report import report_starts
from keylane.errors import HandlerError, PeerError, UsageError
from keylane.foreign_errors import line_of
from keylane.kafka import exact
from keylane.kafka.admin import Admin
from keylane.kafka.faults import MOVED_ON, NO_PARTITION, describe, error_of
from keylane.kafka.log_changes import Reached, changes_of
from keylane.kafka.logs import ANSWER_S
from keylane.kafka.moving import check_no_commits_at_brokers
from keylane.kafka.places import are_apart, for_records
from keylane.offsets import OffsetMap, encode
from keylane.offsets.edits import replayed, rewritten, standing
from keylane.patterns import is_pattern, matches
from keylane.pipeline import LATEST_THEN_EARLIEST, Commit, External, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from confluent_kafka import Consumer

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.ports import Offset
    from keylane.kafka.logs import Logs, Patience
    from keylane.kafka.membership import Target
    from keylane.pipeline import Pipeline


Names = list[tuple[str, int]]

TOO_LARGE = (
    "its offset map would be larger than the broker takes: name fewer records, or raise offset.metadata.max.bytes"
)


class Starts:
    """Resolves starts. Thread safety: the group's thread."""

    def __init__(
        self,
        client: Consumer,
        pipeline: Pipeline,
        logs: Logs,
        patience: Patience,
        commit_now: Callable[[Sequence[Offset]], dict[tuple[str, int], CommitProblem]],
        epochs: Iterator[int],
        check_starts: Callable[[Sequence[Start]], Sequence[Start]],
    ) -> None:
        """`check_starts` raises `PeerError` for starts at which nothing may begin; what it returns has other offsets
        where a partition is to start elsewhere."""
        self._client = client
        self._pipeline = pipeline
        self._rule = StartRule.of(pipeline)
        self._logs = logs
        self._patience = patience
        self._commit_now = commit_now
        self._epochs = epochs
        self._check_starts = check_starts
        self._external = isinstance(pipeline.commit, External)
        self.heard: Callable[[float], None] = lambda _: None
        """Told when the coordinator has answered."""
        self._older: frozenset[tuple[str, int]] = frozenset()
        """The partitions that were there when a group that had committed nothing for their topics began."""

    def look(self, partitions: Callable[[], Names]) -> None:
        """Before the first join, with the partitions that are there of what will be subscribed to. Later it could not
        be told whether the group has just begun: other members have committed their starts."""
        if self._pipeline.offset_reset != LATEST_THEN_EARLIEST:
            return
        names = partitions()
        commits = self._committed(names, self._patience.give_up_at()) if names else []
        begun = {one.topic for one in commits if one.offset >= 0}
        self._older = frozenset(name for name in names if name[0] not in begun and not self._is_later(name[0], begun))

    def _is_later(self, topic: str, begun: Collection[str]) -> bool:
        """Whether a topic of which the group has committed nothing came after the group: an expression brought it, and
        others that the expression is about have begun. They would have begun together."""
        topics = self._pipeline.subscription
        about = [one for one in topics if is_pattern(one) and matches(one, topic)]
        return topic not in topics and any(matches(one, other) for one in about for other in begun)

    def forget(self, topic: str) -> None:
        """It was deleted: one of its name is another, and later."""
        self._older = frozenset(name for name in self._older if name[0] != topic)

    def resolved(self, names: Names, targets: Mapping[tuple[str, int], Target] | None = None) -> list[Start]:
        """Where each partition starts: at its target, if it has one. A start that was not committed is, before anything
        of it can run. Raises `MovedOnError` where the group is going on, with this member or without it."""
        give_up_at = self._patience.give_up_at()
        targets = targets or {}
        starts: dict[tuple[str, int], Start] = {}
        first = []
        resolved = []
        for found in self._found(names, targets, give_up_at):
            offsets, commit_first = self._rule.resolve(found)
            resolved.append((found, offsets))
            name = (found.topic, found.partition)
            target = targets.get(name)
            is_sought = target is not None and not target.again
            start = self._start(found, offsets, is_new=commit_first or is_sought, is_sought=is_sought)
            if target is not None and target.again:
                start, metadata = self._run_again(start, found, target.again)
                if commit_first or start.offsets != offsets:
                    first.append(_First(*name, start.offsets, metadata, offsets, start.leader_epoch))
            elif not self._external and (commit_first or target is not None):
                first.append(_First(*name, offsets))
            starts[name] = start
        for checked in self._check_starts(list(starts.values())):
            name = (checked.topic, checked.partition)
            if checked.offsets is not starts[name].offsets:
                starts[name] = replace(checked, leader_epoch=-1, is_unchecked=False)  # that was the commit's
                first = [one for one in first if one.name != name]
                first.append(_First(*name, checked.offsets, encode(checked.offsets)))
        self._commit(first, starts, give_up_at)
        report_starts(self._rule, resolved)
        return list(starts.values())

    def _start(self, found: Committed, offsets: OffsetMap, *, is_new: bool, is_sought: bool) -> Start:
        is_known = found.offset == offsets.base != found.changed_from
        epoch = found.leader_epoch if is_known else -1
        return Start(
            found.topic,
            found.partition,
            next(self._epochs),
            offsets,
            found.log_start,
            found.log_end,
            self._rule.own_metadata(found),
            leader_epoch=epoch,
            is_unchecked=epoch >= 0 and not found.is_checked,
            origin=found.origin,
            is_new=is_new,
            is_sought=is_sought,
        )

    def _commit(self, first: list[_First], starts: dict[tuple[str, int], Start], give_up_at: float) -> None:
        """What has to be committed before anything of `starts` runs. A map that the broker does not take leaves its
        partition where it was."""
        while first:
            problems = self._commit_now(first)
            for one in first:
                if (found := problems.get(one.name)) and found.metadata_too_large and one.before is not None:
                    del problems[one.name]
                    starts[one.name] = replace(starts[one.name], offsets=one.before, not_sought=TOO_LARGE)
            if not problems:
                break
            problem = next(iter(problems.values()))
            which = some_of([f"{topic}-{partition}" for topic, partition in problems])
            text = f"the starts of {which} cannot be committed: {problem.text}"
            if problem.fatal:
                raise PeerError(text)
            if problem.moved_on and not self._pipeline.assignment:
                raise MovedOnError(text)
            self._check_there(name for name, one in problems.items() if one.missing)
            self._patience.wait(give_up_at, text)
            first = [one for one in first if one.name in problems]

    def _run_again(self, start: Start, found: Committed, again: Collection[int]) -> tuple[Start, str]:
        """The start with these not complete, and the metadata that says so; or as it is, with the reason."""
        try:
            edited = run_again(start, again)
            cap, is_marked = self._pipeline.metadata_cap, start.leader_epoch >= 0
            metadata = rewritten(edited, start.offsets, found.metadata, cap, is_marked=is_marked)
            made = replace(start, offsets=edited, metadata="")
            self._check_starts([made])
        except (UsageError, PeerError) as error:
            return replace(start, not_sought=" ".join(str(error).split())), ""
        return made, metadata

    def _check_there(self, names: Iterable[tuple[str, int]]) -> None:
        """The coordinator knows none of these. It may be behind; raises `MissingError` where there is no log either."""
        for name in names:
            self._logs.bounds(*name)

    def _found(self, names: Names, targets: Mapping[tuple[str, int], Target], give_up_at: float) -> list[Committed]:
        sought = [name for name in names if name in targets and not targets[name].again]
        asked = [name for name in names if name not in sought]
        found = [self._at(name, targets[name]) for name in sought]
        if asked:
            found += self._from_user(asked) if self._external else self._from_group(asked, give_up_at)
        return [self._by_option(one) for one in found]

    def _at(self, name: tuple[str, int], target: Target) -> Committed:
        low, high = self._logs.bounds(*name)
        if target.offset is not None:
            return Committed(*name, min(max(target.offset, low), high), "", low, high)
        assert target.time_ms is not None
        return Committed(*name, self._offset_at(name, target.time_ms, high), "", low, high)

    def _by_option(self, found: Committed) -> Committed:
        """The start of a partition without a committed offset, where it depends on the time, or on when it was made."""
        name, where = (found.topic, found.partition), self._pipeline.offset_reset
        if found.offset is not None:
            return found
        if where == LATEST_THEN_EARLIEST:
            return replace(found, reset_to=found.log_end if name in self._older else found.log_start)
        if (length_ms := duration_ms(where)) is not None:
            since_ms = time.time_ns() // 1_000_000 - length_ms
            return replace(found, reset_to=self._offset_at(name, since_ms, found.log_end))
        return found

    def _offset_at(self, name: tuple[str, int], time_ms: int, log_end: int) -> int:
        """The first record of this time on; the log's end where there is none."""
        found = self._logs.offset_at(*name, time_ms)
        return log_end if found is None else found

    def _from_user(self, names: Names) -> list[Committed]:
        """What `start_offsets` says: an offset, an `OffsetMap`, or None where it knows nothing."""
        commit = self._pipeline.commit
        assert isinstance(commit, External), commit
        try:
            given = commit.start_offsets(list(names))
        except BaseException as error:  # whatever it is: the user's thread is told
            raise HandlerError(f"start_offsets({names}) raised {line_of(error)}") from error
        return [self._given(name, given) for name in names]

    def _given(self, name: tuple[str, int], given: Any) -> Committed:
        offset = given.get(name) if hasattr(given, "get") else given
        offsets = offset if isinstance(offset, OffsetMap) else None
        base = offset if offsets is None else offsets.base
        if base is not None and (isinstance(base, bool) or not isinstance(base, int) or base < 0):
            raise HandlerError(
                f"start_offsets returned {offset!r} for {name[0]}-{name[1]}: return a dict of (topic, partition) to an "
                "offset, a keylane.offsets.OffsetMap, or None"
            )
        return Committed(*name, base, "", *self._logs.bounds(*name), offsets=offsets)

    def _from_group(self, names: Names, give_up_at: float) -> list[Committed]:
        """What the group has committed for each, and what its log holds."""
        found = self._committed(names, give_up_at)
        self._check_brokers([(one.topic, one.partition) for one in found if one.offset < 0])
        return self._checked(
            [
                Committed(
                    one.topic,
                    one.partition,
                    one.offset if one.offset >= 0 else None,
                    one.metadata,
                    *self._logs.bounds(one.topic, one.partition),
                    leader_epoch=one.leader_epoch,
                )
                for one in found
            ]
        )

    def _committed(self, names: Names, give_up_at: float) -> list[exact.GroupOffset]:
        """What the group has committed for each."""
        while True:
            asked_at, found = monotonic(), []
            try:
                found = exact.committed(self._client, names, ANSWER_S)
                failed = next((one.error for one in found if one.error is not None), None)
            except KafkaException as raised:
                failed = error_of(raised)
            self._check_there(
                (one.topic, one.partition)
                for one in found
                if one.error is not None and one.error.code() in NO_PARTITION
            )
            if failed is None:
                self.heard(asked_at)
                return found
            what = f"the committed offsets of group {self._pipeline.group_id!r}"
            if failed.code() in MOVED_ON and not self._pipeline.assignment:
                raise MovedOnError(f"{what} are another member's to read: {describe(failed)}")
            self._patience.ask_again(failed, give_up_at, what)

    def _checked(self, commits: list[Committed]) -> list[Committed]:
        """The same, held against their logs: a commit's leader epoch tells whether those were cut since."""
        reached = {
            (one.topic, one.partition): Reached(
                one.offset, one.leader_epoch, one.log_start, one.log_end, has_map=bool(one.metadata)
            )
            for one in commits
            if one.offset is not None and one.leader_epoch >= 0
        }
        changes = changes_of(self._pipeline.kafka, reached, self._patience.pause)
        return [
            replace(one, is_checked=True, changed_from=changes[one.topic, one.partition])
            if (one.topic, one.partition) in changes
            else one
            for one in commits
        ]

    def _check_brokers(self, names: Names) -> None:
        """The offset servers have no commit of the group for these. Raises `UsageError` where the brokers have one."""
        commit, kafka = self._pipeline.commit, self._pipeline.kafka
        if not names or not are_apart(kafka):
            return
        if isinstance(commit, Commit) and commit.on_commits_at_brokers == "begin_anew":
            return
        way_out = "Commit(on_commits_at_brokers='begin_anew')"
        check_no_commits_at_brokers(Admin(for_records(kafka)), self._pipeline.group_id, kafka, names, way_out)


class MovedOnError(Exception):
    """The group is going on, with this member or without it: it takes no commit of the generation before."""


class _First:
    """The commit of a resolved start: an `Offset` of the port."""

    __slots__ = ("before", "leader_epoch", "metadata", "name", "offset")

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: OffsetMap,
        metadata: str = "",
        before: OffsetMap | None = None,
        leader_epoch: int = -1,
    ) -> None:
        self.name = (topic, partition)
        self.offset = offsets.base
        self.metadata = metadata
        self.before = before
        """Where it starts if the broker does not take the metadata; None: it has none."""
        self.leader_epoch = leader_epoch


def run_again(start: Start, again: Collection[int]) -> OffsetMap:
    """The map of a start in which these offsets are not complete, and all others are what they were. Raises
    `UsageError` for an offset that is not complete, and for one that is not in the log."""
    for offset in sorted(again):
        record = f"{start.topic}:{start.partition}@{offset}"
        if offset < start.log_start:
            raise UsageError(
                f"{record}: it is below the log's start at {start.log_start}: produce it again to have it processed"
            )
        if standing(start.offsets, offset) in ("incomplete", "beyond"):
            raise UsageError(f"{record}: it is not complete: it runs without a replay")
    return replayed(start.offsets, again)
