"""`acknowledged`: what `foreachBatch` runs, followed by the commit for the consumer group.

The idea: the driver is the group's one member and commits what the sink has, so lag is true; the checkpoint stays the
truth, and the next batch's commit brings the group up to it again. With a `CarryOver`, the list of what leaves the
batch is written between the rows' making and the sink (docs/adr/0040).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.errors import InternalError, PeerError, UsageError
from keylane.offsets import encode
from keylane.pipeline import DEFAULT_METADATA_CAP
from keylane.spark.structured.carry_lists import CarryList, Lists, absolute
from keylane.spark.structured.options import kafka_settings
from keylane.spark.structured.own_topics import Reads
from keylane.spark.structured.plans import group_offsets
from keylane.spark.structured.query_events import QueryListener
from keylane.spark.structured.running import fill, running_batch
from keylane.spark.structured.settled import Settled
from keylane.spark.structured.told_lists import tell
from keylane.spark.versions import DATA_SOURCES
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from keylane.kafka.sole_member import SoleMember
    from keylane.offsets import OffsetMap
    from keylane.spark.structured.carry_over import CarryOver, TaskReport
    from keylane.spark.structured.plans import Plan
    from keylane.spark.structured.running import RunningBatch

logger = logger_of(__name__)

INSTANCE_ID = "keylane-query"
"""The group instance id of every driver: a second one under the same group fences the first."""


@dataclass(frozen=True)
class GroupOffset:
    """One partition of a commit."""

    name: tuple[str, int]
    offset: int
    metadata: str
    leader_epoch: int


def acknowledged(
    write: Callable[[DataFrame, int], Any], *, carry_over: CarryOver | None = None
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: `write(frame, batch_id)`, then the group's offsets are committed.

    The group is the source's option `kafka.group.id`; this driver is its one member. A second driver of the same group
    takes it over, and the first one's query fails as soon as a heartbeat or a commit tells it: until then, for a
    heartbeat's 3 s, it may write one batch more, which it cannot commit. A broker that cannot be reached delays
    commits and fails nothing: the next batch commits for both.

    Raises `UsageError` in the query when it has no source `keylane`, or that has no group.
    """
    DATA_SOURCES.need("acknowledged(…)", "commit with keylane.spark.GroupCommits beside Spark's own Kafka connector")
    if not callable(write):
        raise UsageError(f"acknowledged({write!r}): give a function of (frame, batch_id)")
    return Acknowledged(write, carry_over)


class Acknowledged:
    """The function for `foreachBatch`. Thread safety: Spark calls it from one thread a query."""

    def __init__(self, write: Callable[[DataFrame, int], Any], carry_over: CarryOver | None) -> None:
        self._write = write
        self._carry_over = carry_over
        self._member: SoleMember | None = None
        self._carried = 0
        """Records that the last batch carries."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        running = running_batch(frame)
        if self._member is None:
            self._member = self._join(running)
        self._settled(running.plan).tell(running.session)
        self._member.check()
        carried: list[tuple[str, int, int]] = []
        if self._carry_over is None:
            self._write(frame, batch)
        else:
            carried = self._write_without_carried(frame, batch, running, self._carry_over).records()
        self._carried = len(carried)
        offsets = to_commit(group_offsets(running.plan, carried), running.plan.epochs)
        if offsets:
            self._member.commit(offsets)

    def _settled(self, plan: Plan) -> Settled:
        """What tasks of the batch may take as done for good: they are told, whether they need it or not."""
        if self._carry_over is None or plan.redo is None:
            return Settled.before(plan, ())
        found = Lists(self._carry_over.folder).read(plan.redo)
        if found is None:
            raise PeerError(f"{self._carry_over.folder}: the list of batch {plan.redo} is gone: restore it")
        return Settled.before(plan, found.records())

    def close(self) -> None:
        """Leave the group, and say what is left to do. Called when the query ends."""
        carried, self._carried = self._carried, 0
        if carried and self._carry_over is not None:
            logger.warning(
                "the query ended with %d records carried, neither written nor dead: its next run from this checkpoint "
                "goes on with them (their lists: %s)",
                carried,
                self._carry_over.folder,
            )
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _join(self, running: RunningBatch) -> SoleMember:
        """Before the first write, so that a group that others work in is left alone."""
        from keylane.kafka.sole_member import SoleMember

        options = running.options()
        if self._carry_over is not None:
            _check_folder(options, self._carry_over)
            if (steps := running.steps_with_carry_over()) != 1:
                raise UsageError(
                    f"carry_over: the query's plan has {steps} steps of parallel_map with one: give the CarryOver to "
                    "one step, and use its result once"
                )
        reads = Reads.of(options)
        if self._carry_over is not None and self._carry_over.dead_letter is not None:
            topic = self._carry_over.dead_letter.topic
            reads.refuse("dead_letter: the dead-letter topic", topic, self._carry_over.kafka)
        settings = kafka_settings(options)
        if not settings.get("group.id"):
            raise UsageError("acknowledged(…) commits for a group: give the source the option kafka.group.id")
        names = set(running.plan.next)
        member = SoleMember(settings, {topic for topic, _ in names}, INSTANCE_ID)
        try:
            member.own(names)
        except BaseException:
            member.close()
            raise
        reads.tell(running.session)
        running.session.streams.addListener(_Closer(self, running))
        return member

    def _write_without_carried(
        self, frame: DataFrame, batch: int, running: RunningBatch, carry_over: CarryOver
    ) -> CarryList:
        """The steps (1) to (3) of docs/adr/0040; returns the batch's list."""
        lists, plan, context = Lists(carry_over.folder), running.plan, running.session.sparkContext
        found, last = list_of(lists, plan, batch), lists.newest(before=batch)
        if found is not None:
            if found.batch == batch and carry_over.collected(batch):
                raise InternalError(f"batch {batch}: its tasks carried records anew, and its list is written")
            self._write(frame, batch)
            return found
        kept = frame.persist()
        try:
            fill(kept)
            reports = carry_over.collected(batch, went_by=None if last is None else last.batch)
            found = lists.write_once(made_of(plan, batch, reports))
            tell(
                context, carry_over.folder, carry_over.id
            )  # a kept row that Spark loses is made again; and for the next batch
            self._write(kept, batch)
        finally:
            kept.unpersist()
        lists.prune(batch)
        return found


def list_of(lists: Lists, plan: Plan, batch: int) -> CarryList | None:
    """The list that a replayed batch, or one that reads nothing, has already.

    Raises `PeerError` when the folder holds lists of another query.
    """
    found = lists.read(batch)
    if found is None:
        last = lists.newest(before=batch)
        found = last if last is not None and (last.id, last.seq) == (plan.id, plan.seq) else None
        if last is not None and last.id != plan.id:
            found = last
    if found is not None and (found.id, found.seq) != (plan.id, plan.seq):
        raise PeerError(
            f"{lists.folder}: the list of batch {found.batch} is of another query or checkpoint: give this query a "
            "folder of its own"
        )
    return found


def made_of(plan: Plan, batch: int, reports: list[TaskReport]) -> CarryList:
    """The list of a batch from what its tasks reported."""
    carried: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for report in reports:
        for (topic, partition, offset), state in report.carried.items():
            carried.setdefault((topic, partition), {})[offset] = state
    dead = frozenset(name for report in reports for name in report.dead)
    return CarryList(batch, plan.id, plan.seq, carried, dead)


def to_commit(maps: dict[tuple[str, int], OffsetMap], epochs: Mapping[tuple[str, int], int]) -> list[GroupOffset]:
    """Offsets with their maps, and the leader epochs that are known of their logs; a partition whose map does not fit
    is put off."""
    made = []
    for name, one in maps.items():
        epoch = epochs.get(name, -1)
        metadata = encode(one, is_marked=epoch >= 0)
        if len(metadata) > DEFAULT_METADATA_CAP:
            logger.warning("%s-%d: the offset map has %d characters; its commit is put off", *name, len(metadata))
            continue
        made.append(GroupOffset(name, one.base, metadata, epoch))
    return made


def _check_folder(options: Mapping[str, str], carry_over: CarryOver) -> None:
    folder = {name.lower(): value for name, value in options.items()}.get("carryover")
    if folder is None or absolute(folder) != carry_over.folder:
        raise UsageError(
            f"the source's option carryOver is {folder!r}, and the CarryOver has "
            f"{carry_over.folder!r}: give both the same folder"
        )


class _Closer(QueryListener):
    """Leaves the group when this run of the query ends. Spark may tell that of an earlier run while this one runs."""

    wants_progress = False

    def __init__(self, owner: Acknowledged, running: RunningBatch) -> None:
        self._owner = weakref.ref(owner)
        self._run_id = running.run_id
        self._streams = running.session.streams

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        if str(event.runId) != self._run_id:
            return
        owner = self._owner()
        if owner is not None:
            owner.close()
        self._streams.removeListener(self)
