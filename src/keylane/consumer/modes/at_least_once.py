"""`AtLeastOnce`: records start as they come, periodic commits say what is complete. The protocol of the other
modes, with `Plan`, what a core and its mode ask the loop to do.

The idea: the core asks its mode at each step, and each mode overrides the steps that it takes in another way. Exactly
once is this one, around a handler that knows what was done before (`keylane.delivery.exactly_once`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.consumer.closing import Phase
from keylane.errors import InternalError
from keylane.flow.items import Call
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from keylane.consumer.closing import Closing
    from keylane.consumer.commits import Acknowledgements, CommitEntry, Commits, Told
    from keylane.consumer.deliveries import Deliveries
    from keylane.consumer.events import TransactionAnswered
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.partitions import Partition, Partitions
    from keylane.consumer.revokes import Revokes
    from keylane.consumer.start import TopicPartition
    from keylane.flow.core import FlowCore
    from keylane.flow.items import Unit
    from keylane.pipeline import Pipeline
    from keylane.telling import Log


@dataclass(frozen=True, slots=True)
class RevokeAnswer:
    """The last commit of revoked partitions: commit these, then they are forgotten."""

    token: Any
    """What `revoking` was given."""
    entries: list[CommitEntry]


@dataclass(slots=True)
class Plan:
    """What to do now. Nothing in it may be left out, or done twice."""

    dispatch: Sequence[Unit] = ()
    produce: list[Delivery] = field(default_factory=list)
    results: list[Delivery] = field(default_factory=list)
    """Succeeded, and to be shown to user code before they are complete."""
    commit: list[CommitEntry] | None = None
    """With transactions, the end of the one that is under way."""
    abort: bool | None = None
    """Abort the transaction; True: by giving up its producer."""
    reload: list[tuple[TopicPartition, int]] = field(default_factory=list)
    """Partitions that begin anew from their committed maps, if they still have this epoch."""
    told: list[Told] = field(default_factory=list)
    """What user code is to hear of commits."""
    revoked: list[RevokeAnswer] = field(default_factory=list)
    credit: int = 0
    """Records that may be polled now."""
    pause: Sequence[Partition] = ()
    resume: Sequence[Partition] = ()
    ask_committed: Sequence[TopicPartition] = ()
    withdraw: bool = False
    """Take back from the workers what may not start any more."""
    cancel: bool = False
    """Tell the workers that some results can no longer count."""

    def hand_over(self, units: Sequence[Unit]) -> None:
        self.dispatch = units

    def send(self, deliveries: list[Delivery], results: list[Delivery]) -> None:
        self.produce, self.results = deliveries, results

    def poll(self, credit: int, pause: Sequence[Partition], resume: Sequence[Partition]) -> None:
        """So many records, and of fewer or more partitions; `resume` beside those that are to resume already."""
        self.credit, self.pause = credit, pause
        self.resume = (*(one for one in self.resume if not one.is_poll_paused), *resume)

    def resume_poll(self, partition: Partition) -> None:
        self.resume = (*self.resume, partition)

    def ask(self, names: Sequence[TopicPartition]) -> None:
        self.ask_committed = names

    def commit_these(self, entries: list[CommitEntry] | None) -> None:
        self.commit = entries

    def abort_it(self, *, renew: bool | None) -> None:
        """None: there is nothing to abort."""
        self.abort = renew

    def begin_anew(self, epochs: list[tuple[TopicPartition, int]]) -> None:
        self.reload = epochs

    def end_calls(self) -> None:
        """What runs cannot count any more."""
        self.cancel = True

    def withdraw_calls(self, *, cancel: bool = False) -> None:
        """Have the workers give back what may not start any more; `cancel`: and end what cannot count."""
        self.withdraw = True
        self.cancel = self.cancel or cancel


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a core that its mode works on."""

    pipeline: Pipeline
    flow: FlowCore
    partitions: Partitions
    deliveries: Deliveries
    commits: Commits
    acknowledgements: Acknowledgements
    revokes: Revokes
    closing: Closing
    counters: Counter[str]
    log: Log
    fail_at_once: Callable[[BaseException, float], None]
    """Stop because of this error; what runs is cancelled."""
    forget: Callable[[Iterable[Partition]], None]
    """Nothing of these counts any more."""
    withdraw: Callable[[], None]
    """Have the next plan take back and cancel what nobody wants."""


class Token:
    """What stands, first in its shard of a new epoch, for calls that run on from earlier ones."""

    __slots__ = ("_left", "_partition", "_stand_in")

    def __init__(self, partition: Partition, stand_in: PlainMessage) -> None:
        self._partition = partition
        self._stand_in = stand_in
        self._left = 0
        partition.source.block(stand_in.offset(), stand_in)

    def wait_for_one_more(self) -> None:
        self._left += 1

    def one_is_over(self) -> Partition | None:
        """One less that it waits for; the partition in which something may run that could not, after the last."""
        self._left -= 1
        if self._left or not self._partition.wanted:
            return None
        self._partition.source.free(self._stand_in.offset(), self._stand_in)
        return self._partition


class AtLeastOnce:
    """One consumer's mode. Thread safety: none; its owner is the loop."""

    alone = False
    """Whether no record goes to a worker together with another one."""
    one_a_key = False
    """Whether a batch holds one record of a key: records behind one that failed would run again."""
    may_queue = True
    """Whether records may wait with the workers."""
    keeps_records = False
    """Whether it has to know which records an acknowledged commit has."""
    may_put_off = True
    """Whether a commit whose map does not fit may wait."""
    begins_when_stopped = False
    """Whether what was handed over may begin although its partition is being given up: it was committed before."""
    revoke_commit_s = 0.0
    """How much longer than its handlers a revoke may wait."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ordering = parts.pipeline.ordering
        self._tokens: dict[Unit, dict[bytes | None, Token]] = {}
        """What runs on from earlier epochs, and by key what stands for it."""

    # --- the group ---

    def begin(self, partition: Partition, plan: Plan) -> None:  # noqa: ARG002 - for others
        """A partition was assigned. A key of it of which a handler still runs, from before it was lost or given up,
        waits for that: records of a key never overlap."""
        if self._ordering != "unordered":
            self._wait_for_those_that_run(partition)

    def _wait_for_those_that_run(self, partition: Partition) -> None:
        tokens: dict[bytes | None, Token] = {}
        for unit in self._parts.flow.out:
            if isinstance(unit, Call) and unit.source.name != partition.name:
                continue
            for key in set(self._keys(unit, partition.name)):
                token = tokens.get(key)
                if token is None:
                    stand_in = PlainMessage(*partition.name, offset_=-1 - len(tokens), key_=key)
                    token = tokens[key] = Token(partition, stand_in)
                token.wait_for_one_more()
                of_unit = self._tokens.setdefault(unit, {})
                if (before := of_unit.get(key)) is not None:
                    before.one_is_over()
                of_unit[key] = token

    def _keys(self, unit: Unit, name: TopicPartition) -> Iterator[bytes | None]:
        """The shards of this partition in which something of a unit runs."""
        payloads = (
            unit.payloads[: len(unit)]
            if isinstance(unit, Call)
            else [item.payload for item in unit.items if item.source.name == name]
        )
        if self._ordering == "partition":
            return iter((None,) if payloads else ())
        return (key for one in payloads if (key := one.key()) is not None)

    def given_up(self, names: Iterable[TopicPartition]) -> None:
        """These are being revoked, or were lost."""

    def lost(self, names: Sequence[TopicPartition], partitions: Sequence[Partition]) -> None:
        """These were lost, and are closed."""

    def closed(self) -> None:
        """Partitions were closed."""

    # --- the work ---

    def before_take(self) -> None:
        """The flow is about to say what runs next."""

    def hand_over(self, units: Sequence[Unit], now: float, *, may_start: bool) -> Sequence[Unit]:  # noqa: ARG002
        """What goes to the workers now that the flow has taken `units`; `may_start`: handlers may at all."""
        return units

    def came_back(self, units: Iterable[Unit]) -> None:
        """Workers report these, or gave them back; called before anything follows from that."""
        if not self._tokens:
            return
        for unit in units:
            for token in self._tokens.pop(unit, {}).values():
                if (partition := token.one_is_over()) is not None:
                    self._parts.flow.offer(partition.source)

    def given_back(self) -> Sequence[Unit]:
        """What was kept from the workers and does not start any more."""
        return ()

    def complete(self, partition: Partition, offsets: Sequence[int]) -> None:
        """These are through."""
        self._parts.partitions.complete(partition, offsets)

    # --- outputs ---

    def outputs(self) -> list[Delivery]:
        """What is to be produced now."""
        return self._parts.deliveries.pop_outputs()

    def is_undone_by(self, delivery: Delivery) -> bool:  # noqa: ARG002 - for others
        """Whether what became of this delivery has undone what came before it."""
        return False

    def transaction_answered(self, event: TransactionAnswered, now: float) -> None:  # noqa: ARG002 - for others
        raise InternalError(f"there are no transactions: {event}")

    # --- commits ---

    def acknowledged(self, entries: Sequence[CommitEntry]) -> None:
        """The broker took these."""

    @property
    def waits_for_commit(self) -> bool:
        """Whether something waits for the next commit, which goes at once."""
        return False

    @property
    def may_commit(self) -> bool:
        return True

    @property
    def is_committed(self) -> bool:
        """Whether the consumer may end: nothing is left to commit."""
        return self._parts.commits.on_its_way is None and not self._parts.partitions.uncommitted

    def commit(self, plan: Plan, now: float, *, is_due: bool) -> None:
        if is_due:
            parts = self._parts
            plan.commit_these(parts.commits.plan(parts.partitions.open.values(), now))
            parts.partitions.commit_is_planned()

    def answer_revokes(self, plan: Plan, now: float) -> None:
        """Answer the revokes whose handlers are through, or have had their time."""
        parts = self._parts
        for revoke in parts.revokes.ready(now, at_once=parts.closing.waits_for_last_commit):
            parts.revokes.give_up(revoke)
            if revoke.busy:
                plan.end_calls()
            open_ones = [one for one in revoke.partitions if one.wanted]
            # Once finished, the last commit was acknowledged, or did not get through: then neither would this one.
            entries = [] if parts.closing.phase is Phase.FINISHED else parts.commits.entries(open_ones, now)
            plan.revoked.append(RevokeAnswer(revoke.token, entries))
            parts.forget(open_ones)
            parts.acknowledgements.forget(set(open_ones).difference(entry.partition for entry in entries))

    def next_check(self) -> float | None:
        """When there is something to do even if nothing happens."""
        return None
