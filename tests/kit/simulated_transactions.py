"""The simulation's transactions: a producer, a coordinator that decides, and readers of committed records.

The idea: what the engine puts into a transaction is kept here until the coordinator decides it. Then the outputs are
seen and the offsets are the group's, both or none, whatever the engine is told; it may be told nothing, or that the
producer is fenced. After each decision the oracle compares: an output is seen if and only if its input is complete in
the group's map, it is seen once, all outputs of a record together, and those of a shard in offset order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kit.seam import Committed, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.seam import Entry, Plan
    from kit.simulated_log import Log, Sent, TopicPartition
    from kit.simulation import Simulation


class SimulatedTransactions:
    """One producer's transactions, as long as one engine lives."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._random = world.random
        self._inside: list[Sent] = []
        self._step: Literal["start", "commit", "abort"] | None = "start"
        """What the producer was asked for and has not answered."""
        self._entries: Sequence[Entry] = ()
        self._is_sent = False
        """Whether the offsets wait for the decision."""
        self._reloads: list[tuple[TopicPartition, int]] = []

    # --- what the engine asks for ---

    def obey(self, plan: Plan, produced: Sequence[Sent]) -> None:
        world = self._world
        if produced:
            world.check(self._step is None, "produced although the producer is at: {}", self._step)
            self._inside += produced
        if plan.commit is not None:
            world.check(self._step is None, "a commit was asked for during: {}", self._step)
            world.check(not any(one.pending for one in self._inside), "committed with outputs that have no answer")
            self._step, self._entries, self._is_sent = "commit", plan.commit.entries, False
        if plan.abort is not None:
            world.check(self._step is None, "an abort was asked for during: {}", self._step)
            self._step = "abort"
            world.seen["aborted"] += 1
            world.seen["renewed"] += plan.abort
        self._reloads += plan.reload

    def holds(self, log: Log) -> bool:
        """Whether the committed offset of this partition waits for a decision: nobody is told it before."""
        return self._is_sent and any(entry.name == log.name for entry in self._entries)

    def has_part_in(self, log: Log) -> bool:
        """Whether something of this partition waits for the end of a transaction."""
        return self.holds(log) or any(sent.item.name == log.name for sent in self._inside)

    # --- steps ---

    def answer(self) -> None:
        """The producer gets on."""
        step = self._step
        if step is None:
            return
        if step == "commit":
            self._commit()
            return
        fails = self._world.faults and self._random.random() < 0.1
        self._step = None
        if not fails:
            self._inside.clear()
        problem = Problem("simulated", fenced=True) if fails else None
        self._world.engine.transaction_answered(step, problem, self._world.now)

    def reload(self) -> None:
        """The member reads what is committed of what was undone."""
        for name, epoch in list(self._reloads):
            log = self._world.logs[name[1]]
            if log.epoch != epoch or name in self._world.revoking:
                self._reloads.remove((name, epoch))
            elif not self.holds(log):
                self._reloads.remove((name, epoch))
                log.running.clear()
                self._world.engine.assigned([self._world.assigned(log)], self._world.now)
                self._world.seen["began anew"] += 1

    def crash(self) -> None:
        """The process dies; what it had asked for may have been decided."""
        if self._is_sent and self._random.random() < 0.5:
            self._decide()

    def _commit(self) -> None:
        world = self._world
        if not self._is_sent:
            stale = [entry.name for entry in self._entries if self._log(entry).epoch != entry.epoch]
            fails = world.faults and self._random.random() < 0.05
            too_large = any(len(entry.metadata) > world.settings.broker_metadata_cap for entry in self._entries)
            if stale or fails or too_large:
                world.seen["refused"] += 1
                world.seen["too large"] += too_large
                self._answered(Problem("simulated", metadata_too_large=too_large))
            else:
                self._is_sent = True
            return
        if world.faults and self._random.random() < 0.1:
            decided = self._random.random() < 0.5
            world.seen["unknown"] += decided
            if decided:
                self._decide()
            self._is_sent = False
            self._answered(Problem("simulated", fenced=True))
            return
        self._decide()
        self._is_sent = False
        self._answered(None)

    def _answered(self, problem: Problem | None) -> None:
        self._step = None
        if problem is None:
            self._inside.clear()
        self._world.engine.transaction_answered("commit", problem, self._world.now)

    # --- the decision ---

    def _decide(self) -> None:
        """It is committed: offsets and outputs, at once."""
        self._world.seen["transactions"] += 1
        for entry in self._entries:
            self._log(entry).committed = Committed(entry.offset, entry.metadata, entry.leader_epoch)
        for sent in self._inside:
            if sent.entered:
                self._seen(sent)
        self._inside.clear()
        for log in self._world.logs:
            self._compare(log)

    def _seen(self, sent: Sent) -> None:
        world, item = self._world, sent.item
        log = world.logs[item.name[1]]
        world.check(item.offset not in log.visible, "{}: its outputs are seen twice", item)
        world.check(sent.error is None, "{}: an output that failed is seen", item)
        shard = log.shard(item.message, world.settings.ordering)
        for other in log.visible if shard is not None else ():
            before = other < item.offset or log.shard(log.records[other], world.settings.ordering) != shard
            world.check(before, "{}: its outputs are seen behind those of {}", item, other)
        log.visible[item.offset] = sent

    def _compare(self, log: Log) -> None:
        for offset in log.records:
            covered = log.covers(offset)
            expected = log.done.get(offset) if covered else None
            seen = log.visible.get(offset)
            what = (log.name, offset, covered)
            check = self._world.check
            check(covered or seen is None, "{}@{}: covered: {}, but its outputs are seen", *what)
            right = not covered or seen is expected
            check(right, "{}@{}: covered: {}, but other outputs are seen than it came to", *what)

    def _log(self, entry: Entry) -> Log:
        return self._world.logs[entry.name[1]]
