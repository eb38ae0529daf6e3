"""A seeded simulation of the engine: any schedule of polls, completions, failures, rebalances and crashes.

The idea: the engine behind the seam (`kit.seam`) has no thread, clock or client, so one random source drives it and the
world around it (a log, a group and its committed offsets, workers, a producer), step by step, and an oracle checks
keylane's guarantees at every one:

1. a commit never passes, or maps as complete, a record that is not; 2. within an assignment the acknowledged offset
never goes back; 3. a record that an acknowledged commit had complete is not run again; 4. records of a shard never
overlap, and start in offset order; 5. metadata never exceeds the cap, and a map is left out only where the broker
takes less than was set; a commit speaks of no record that a later leader has
written; 6. what an earlier assignment's work comes to changes nothing. Nothing starts
of a partition that the user has paused, nor of a key that an operator holds or has skipped, nor beyond
`max_uncommitted`, nor faster than `rates` and limits of keys allow. 1 and 3 but for what an operator has skipped, and
for what was replayed, which runs once more, in order, and no other record with it.

With `store` each record has its effect in the store of exactly once, and has it once, though the store goes back in
time and logs become other ones (`kit.simulated_store`).

Under `delivery="at_most_once"`, instead of 1 and 3: a record begins once, in whatever process, and is committed by
then. Under "almost_once" a crash would repeat at most as many records as may be in flight.

After the faults end everything must complete and be committed. A failed check raises `Violation`, whose text has the
seed and how to run it again (`kit.replay`): the same seed is the same run.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import keylane as kl
from keylane.errors import HandlerError, StoreError
from keylane.flow.keys import KeyRule, Where
from keylane.offsets import DispatchBound, decode, encode
from keylane.offsets.codec import map_origin
from keylane.offsets.edits import replayed
from keylane.options import Batch, Breaker, DeadLetter, Halt, Rates, Retries, Skip
from keylane.pipeline import Pipeline
from keylane.records import PlainMessage
from kit.engines import make_engine
from kit.seam import Committed, Make, Problem, Start, Workers
from kit.simulated_log import TOPIC, Log, Sent
from kit.simulated_rates import KeyOracle, RateOracle
from kit.simulated_store import SimulatedStore
from kit.simulated_transactions import SimulatedTransactions
from kit.simulated_workers import SimulatedWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.options import DeliveryName, OnExhausted, Ordering, Traversal
    from kit.seam import Commit, Entry, Plan

TopicPartition = tuple[str, int]

MOST_JUMP_S = 30.0
"""How far time goes at once: further, and a handler seems to hang."""


def _priority(record: kl.Record) -> int:
    return record.offset * 7 % 4


class Violation(AssertionError):  # noqa: N818 - it says what it is
    """A guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one simulation is like."""

    ordering: Ordering = "key"
    partitions: int = 3
    keys: int = 8
    concurrency: int = 6
    max_buffered_records: int = 60
    metadata_cap: int = 4096
    broker_metadata_cap: int = 4096
    on_exhausted: OnExhausted = field(default_factory=Skip)
    failure_share: float = 0.1
    """Of handler attempts."""
    throttle_share: float = 0.0
    """The same: the service throttles them."""
    output_share: float = 0.3
    """Of handlers that succeed."""
    gap_share: float = 0.05
    """Of offsets."""
    results: bool = False
    """Whether somebody is to see each result before its record is complete."""
    call_s: float = 0.0
    """How long a call of several records may keep a worker: a second makes calls of dozens."""
    batch: Batch | None = None
    urgent: bool = False
    """Whether records have priorities."""
    later_share: float = 0.0
    """Of records: they are scheduled for later."""
    breaker: Breaker | None = None
    """With one a record has any number of attempts: no oracle here says whether a last one counts."""
    deaths: float = 0.0
    """Of hand-overs: their worker dies under them."""
    rates: Rates = field(default_factory=Rates)
    traversal: Traversal = "fair"
    max_uncommitted: int | None = None
    hands: int = 0
    """How often the user pauses, resumes and changes bounds; 20 is often."""
    rules: int = 0
    """How often an operator holds, slows, skips and releases keys; 20 is often."""
    moves: int = 0
    """How often a partition that nobody has is cut, gets another leader, or has its commit written by others (copied by
    a mirror, or by the JVM's consumer); 5 is often. Copies not with transactions."""
    replays: int = 0
    """How often an operator lets complete records run again; 10 is often. Not with transactions."""
    delivery: DeliveryName = "at_least_once"
    store: int = 0
    """How often the store of exactly once goes back in time, or the log becomes another one; 10 is often. 0: there is
    no store, and `delivery` counts."""
    rebalances: int = 1
    """How much more often than usual partitions come and go."""


class Simulation:
    """One engine in its world. `run` takes steps; `finish` ends the faults and waits for everything to be committed."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.seed = seed
        self.settings = settings or Settings()
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.steps = self._asked = 0
        self.seen: Counter[str] = Counter()
        """What happened how often: a test checks that the schedule had teeth."""
        self.logs = [Log(partition) for partition in range(self.settings.partitions)]
        self._epoch = 0
        self.begun: set[tuple[int, int]] = set()
        """Records whose handler has begun, in any process."""
        self.faults = True
        self.transactions: SimulatedTransactions | None = None
        self.store = SimulatedStore(self) if self.settings.store else None
        self._written = 0
        self._new_engine()

    def _new_engine(self) -> None:
        settings = self.settings
        attempts = 1 if settings.delivery == "at_most_once" else 3 if settings.breaker is None else None
        self.pipeline = Pipeline(
            kafka={"bootstrap.servers": "simulated:0", "group.id": "simulated"},
            topics=[TOPIC],
            handler=_never_called,
            ordering=settings.ordering,
            max_buffered_records=settings.max_buffered_records,
            retries=Retries(max_attempts=attempts, delay_ms=50, max_delay_ms=400),
            delivery=settings.delivery if self.store is None else self.store.delivery(),
            on_exhausted=settings.on_exhausted,
            commit=kl.Commit(interval_ms=200, metadata_max_bytes=settings.metadata_cap, on_copied_map="run_again"),
            offset_reset="earliest",
            beyond_log_end="earliest",
            revoke_timeout_ms=300,
            drain_timeout_ms=500,
            rates=settings.rates,
            traversal=settings.traversal,
            max_uncommitted=settings.max_uncommitted,
            batch=settings.batch,
            breaker=settings.breaker,
            priority=_priority if settings.urgent else None,
        )
        if self.store is not None:
            self.store.begin(self.pipeline)
        if self.transactions is not None:
            self.transactions.crash()
        self.transactions = SimulatedTransactions(self) if settings.delivery == "transactional" else None
        self.rates = RateOracle(settings.rates)
        self.keys = KeyOracle(())
        self.engine = make_engine(
            self.pipeline,
            Make(
                Workers(settings.concurrency, *(self.random.random() < 0.5 for _ in range(2))),
                lease_s=3.0,
                every_result=settings.results,
                call_s=settings.call_s,
            ),
            self.random.random,
        )
        self.paused: set[TopicPartition] = set()
        self.all_paused = False
        """What the user has paused."""
        self.workers = SimulatedWorkers(self)
        self.commit: Commit | None = None
        self.answer: dict[TopicPartition, Problem] | None = None
        """The answer to `commit`, when it is known already, and not told."""
        self.revoking: list[TopicPartition] = []
        self.replaying: dict[TopicPartition, list[int]] = {}
        """Of partitions that come to their end for it, what is to run again."""
        self.credit = 0
        for log in self.logs:
            self._let_go(log)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    # --- steps ---

    def run(self, steps: int) -> None:
        self._asked = steps
        actions: list[tuple[Callable[[], None], int]] = [
            (self._poll, 30),
            (lambda: self.workers.complete(), 60),
            (lambda: self.workers.deliver(), 20),
            (lambda: self.workers.settle(), 20 * self.settings.results),
            (self._answer_commit, 10),
            (self._answer_transactions, 25 * (self.settings.delivery == "transactional")),
            (self._grow, 12),
            (self._pass_time, 20),
            (self._hear, 4),
            (self._assign, 8 * self.settings.rebalances),
            (self._revoke, 2 * self.settings.rebalances),
            (self._lose, self.settings.rebalances),
            (self._drop_log, 1),
            (self._interfere, self.settings.hands),
            (self._rule, self.settings.rules),
            (self._skip, self.settings.rules),
            (self._move, self.settings.moves),
            (self._replay, self.settings.replays * (self.settings.delivery != "transactional")),
            (self._keep, self.settings.store),
            (self._crash, 1),
            (self._stop, 1),
        ]
        choices, weights = zip(*actions, strict=True)
        for action in self.random.choices(choices, weights, k=steps):
            self.step(action)

    def step(self, action: Callable[[], None]) -> None:
        self.steps += 1
        self.seen["held back"] += self.engine.holds_back
        self.now += self.random.random() * 0.002
        action()
        plan = self.engine.plan(self.now)
        self.workers.take_back(plan.recalled)
        self._pass_over()
        if self._is_noted(plan):
            self._act(plan)
        else:
            self._new_engine()
        if self.engine.is_finished:
            self._ended()

    def finish(self, limit: int = 20_000) -> None:
        """No more faults: everything in the logs must complete and be committed. Outside of transactions, the engine
        hears of several things at once before it plans, as in a round of its loop."""
        self.faults = False
        self._resume(None)
        self._rule_keys([])
        actions = [
            self._assign,
            self._poll,
            lambda: self.workers.complete(),
            lambda: self.workers.deliver(),
            lambda: self.workers.settle(),
            self._answer_commit,
            self._pass_time,
            self._hear,
            self._answer_transactions,
        ]

        def all_at_once() -> None:
            for action in actions:
                action()

        # Of an abort the engine hears with old handlers still running: there each event stands alone.
        steps = [all_at_once] if self.transactions is None else actions
        for _ in range(limit):
            if all(log.assigned and log.committed is not None and log.committed[0] == log.end for log in self.logs):
                for log in self.logs if self.settings.delivery != "at_most_once" else ():
                    left = log.again & log.records.keys()  # but for what retention took
                    self.check(not left, "{}: {} were replayed, and did not run", log.name, left)
                    lost = log.records.keys() - log.done.keys() if self.settings.moves else ()
                    self.check(not lost, "{}: {} are committed, and never ran", log.name, lost)
                if self.store is not None:
                    self.store.check_all(self.logs)
                return
            for step in steps:
                self.step(step)
        stuck = [f"{log.name}: committed {log.committed} of {log.end}, {len(log.running)} running" for log in self.logs]
        self.violated(f"no end in sight: {'; '.join(stuck)}")

    # --- what the world does ---

    def _grow(self) -> None:
        log = self.random.choice(self.logs)
        for _ in range(self.random.randint(1, 12)):
            if self.random.random() < self.settings.gap_share:
                log.end += self.random.randint(1, 4)  # compacted, or a control record
            keyed = self.random.random() < 0.9
            key = b"%d" % self.random.randrange(self.settings.keys) if keyed else None
            self._written += 1
            record = PlainMessage(TOPIC, log.partition, log.end, key, b"%d" % self._written, leader_epoch_=log.leader)
            log.records[log.end] = record
            if log.assigned:
                log.todo[log.end] = record
            log.end += 1

    def _assign(self) -> None:
        free = [log for log in self.logs if not log.assigned and not self._waits(log)]
        if not free or not self.engine.is_running:
            return
        starts = [self.assigned(log) for log in self.random.sample(free, self.random.randint(1, len(free)))]
        if self.store is not None:
            checked = self.store.check(starts)
            if checked is None:
                self._new_engine()
                return
            starts = [self._rewound(*one) for one in zip(starts, checked, strict=True)]
        self.engine.assigned(starts, self.now)
        self.seen["assigned"] += len(starts)

    def _waits(self, log: Log) -> bool:
        return self.transactions is not None and self.transactions.holds(log)

    def _answer_transactions(self) -> None:
        if self.transactions is not None:
            self.transactions.reload() if self.random.random() < 0.5 else self.transactions.answer()

    def assigned(self, log: Log) -> Start:
        before, change = log.committed, log.changed_from()
        leader_epoch = -1 if before is None else before.leader_epoch
        may_ask = not self.settings.moves or leader_epoch < 0 or self.random.random() < 0.7
        is_unchecked = not may_ask and before is not None and change != before.offset
        if change is not None and before is not None and before.offset > change:
            self.seen["beyond a cut"] += 1
            is_unchecked = False
        offsets, first = self.engine.resolve(log.name, before, log.start, log.end, None if is_unchecked else change)
        self.seen["unchecked"] += is_unchecked and bool(offsets.span)
        if first or before is None:
            log.committed, leader_epoch = Committed(offsets.base), -1
        elif change == before.offset:
            leader_epoch = -1
        self._epoch += 1
        log.assigned, log.epoch = True, self._epoch
        log.position = max(offsets.base, log.start)
        log.acknowledged = offsets.base
        for offset in [one for one in log.records if one < log.position and not offsets.is_complete(one)]:
            del log.records[offset]  # lost to retention after it was polled, and before that was committed
        for offset in [one for one in log.records if one < log.position and one not in log.done]:
            self.check(
                not self.settings.moves or self.settings.delivery == "at_most_once",
                "{}: starts at {} behind {}, which never ran",
                log.name,
                log.position,
                offset,
            )
        log.todo = {
            offset: record
            for offset, record in log.records.items()
            if offset >= log.position and not log.covers(offset) and offset not in log.given_up
        }
        return Start(log.name, self._epoch, offsets, log.start, log.end, leader_epoch, is_unchecked)

    def _rewound(self, start: Start, checked: Start) -> Start:
        """A partition that starts where the store is, and not where the group is."""
        if start.offsets == checked.offsets:
            return start
        log = self.logs[start.name[1]]
        log.rewound = checked.offsets
        log.position = max(checked.offsets.base, log.start)
        log.acknowledged = checked.offsets.base
        for offset in [one for one in log.records if one < log.position and not log.covers(one)]:
            del log.records[offset]  # lost to retention
        log.todo = {
            offset: record for offset, record in log.records.items()
            if offset >= log.position and not log.covers(offset)
        }  # fmt: skip
        self.seen["rewound"] += 1
        return checked

    def _keep(self) -> None:
        """Something happens to the store, or to the logs that it knows."""
        assert self.store is not None
        choice = self.random.randrange(10)
        log = self.random.choice(self.logs)
        if choice < 3:
            self.store.back_up()
        elif choice < 5:
            self.store.put_back()
        elif choice < 8:
            if not self.store.keep_house():
                self._new_engine()
        elif choice == 8 and not log.assigned and log.committed is not None:
            log.cut(self.random.randint(log.start, log.end))
            for offset in [one for one in log.records if one < log.start]:
                del log.records[offset]  # lost to retention after it was polled: the commit may be behind it
            back = self.random.randint(log.start, max(log.start, min(log.end, log.committed.offset)))
            log.committed = Committed(back)  # a folder that is put back has both
            self.seen["put back with the log"] += 1
        elif choice == 9 and self.random.random() < 0.2:
            self._new_engine()
            for log in self.logs:
                log.make_anew()
            self.store.make_topic_anew()

    def _poll(self) -> None:
        ready = [log for log in self.logs if log.assigned and not log.paused]
        if not ready or self.credit <= 0:
            return
        log = self.random.choice(ready)
        due = [offset for offset in range(log.position, log.end) if offset in log.records][: self.random.randint(1, 20)]
        due = due[: self.credit]
        if due:
            self.credit -= len(due)
            log.position = due[-1] + 1
            self.engine.polled(log.name, log.epoch, [log.records[offset] for offset in due])
        elif self.random.random() < 0.5 or not self.faults:
            log.position = log.end
            self.engine.partition_ended(log.name, log.epoch, log.end)

    def _drop_log(self) -> None:
        """Retention: the log's start moves, sometimes over what was not polled yet."""
        log = self.random.choice(self.logs)
        if log.committed is None or self.random.random() < 0.7:
            return
        log.start = max(log.start, min(log.end, log.committed[0] + self.random.randint(-5, 15)))
        for offset in [offset for offset in log.records if offset < log.start]:
            if not log.assigned or offset >= log.position:  # what was polled is not lost
                del log.records[offset]
                log.todo.pop(offset, None)
        if log.assigned and log.position < log.start:
            self.seen["retention"] += 1
            log.position = log.start
            self.engine.log_start_moved(log.name, log.epoch, log.start)

    def _answer_commit(self) -> None:
        if self.commit is None:
            return
        commit, self.commit = self.commit, None
        problems = self._committed(commit.entries) if self.answer is None else self.answer
        self.answer = None
        self.engine.commit_answered(commit, problems, self.now)

    def _committed(self, entries: Sequence[Entry]) -> dict[TopicPartition, Problem]:
        """The broker applies a commit, or does not, and says so, or does not."""
        problems = {}
        fails = self.faults and self.random.random() < 0.15
        applied = not fails or self.random.random() < 0.5
        for entry in entries:
            log = self.logs[entry.name[1]]
            if len(entry.metadata) > self.settings.broker_metadata_cap:
                problems[entry.name] = Problem("simulated", metadata_too_large=True)
                self.seen["too large"] += 1
                continue
            if applied and log.epoch == entry.epoch:  # a fenced member's commit is refused
                log.committed, log.rewound = Committed(entry.offset, entry.metadata, entry.leader_epoch), None
            if fails:
                problems[entry.name] = Problem("simulated")
                self.seen["commit failed"] += 1
            elif log.epoch == entry.epoch:
                if entry.offset < log.acknowledged:
                    self.violated(f"{log.name}: the committed offset went from {log.acknowledged} to {entry.offset}")
                log.acknowledged = entry.offset
                log.unacknowledged = {offset for offset in log.unacknowledged if not log.said_by(entry, offset)}
                if self.store is not None:
                    self.store.committed(entry.name, entry.offset)
        return problems

    def _revoke(self) -> None:
        names = [log.name for log in self.logs if log.assigned and log.name not in self.revoking]
        if not names:
            return
        chosen = self.random.sample(names, self.random.randint(1, len(names)))
        self.revoking += chosen
        self.seen["revoked"] += len(chosen)
        self.engine.revoking(chosen, chosen, self.now)

    def _lose(self) -> None:
        names = [log.name for log in self.logs if log.assigned and log.name not in self.revoking]
        if names:
            chosen = self.random.sample(names, 1)
            self.seen["lost"] += 1
            self.engine.lost(chosen)
            for log in self._named(chosen):
                self._let_go(log)

    def _interfere(self) -> None:
        """The user pauses, resumes, or changes a bound."""
        names = [log.name for log in self.random.sample(self.logs, self.random.randint(1, len(self.logs)))]
        choice = self.random.randrange(5)
        if choice == 0:
            self._pause(names if self.random.random() < 0.8 else None)
            self.seen["paused by hand"] += 1
        elif choice <= 2:
            self._resume(names if self.random.random() < 0.5 else None)
        else:
            most = self.random.randint(1, 2 * self.settings.concurrency)
            self.engine.adjust(most if choice == 3 else None, None if choice == 3 else self.settings.rates)
            if choice != 3:
                self.rates = RateOracle(self.settings.rates)

    def _rule(self) -> None:
        """An operator holds, slows or skips keys, or releases them."""
        key = self.random.randrange(self.settings.keys)
        one = Where.parse(self.random.choice([f"key={key}", f"key={key}", f"key=*{key}", "key=*"]))
        made = self.random.choice([KeyRule(one, "hold"), KeyRule(one, "limit", 20.0), KeyRule(one, "skip")])
        kept = self.random.sample(self.keys.rules, self.random.randint(0, min(2, len(self.keys.rules))))
        others = [rule for rule in kept if rule.where != one]
        self._rule_keys([*others, made] if self.random.random() < 0.6 else others)
        self.seen[made.do] += 1

    def _skip(self) -> None:
        """An operator skips one record: it is skipped if it is the first of its shard and does not run."""
        log = self.random.choice(self.logs)
        if not log.assigned or not log.todo or log.name in self.revoking:
            return
        offset = self.random.choice(list(log.todo)[:8])
        shard = log.shard(log.todo[offset], self.settings.ordering)
        if not self.engine.skip(log.name, offset, self.now):
            return
        for one in [one for one in log.todo if one < offset]:
            is_behind = shard is not None and log.shard(log.todo[one], self.settings.ordering) == shard
            self.check(not is_behind, "{}: {} was skipped before {} of its shard", log.name, offset, one)
        self.seen["skipped alone"] += 1
        self._passed_over(log, offset)

    def _replay(self) -> None:
        """An operator lets complete records run again: their partition comes to its end, and begins anew with a map
        that has them incomplete."""
        log = self.random.choice(self.logs)
        if not log.assigned or log.name in self.revoking or (found := log.map()) is None:
            return
        done = [one for one in log.records if one >= log.start and found.is_complete(one)]
        if not done:
            return
        self.replaying[log.name] = self.random.sample(done, min(len(done), self.random.randint(1, 4)))
        self.revoking.append(log.name)
        self.engine.revoking([log.name], [log.name], self.now)

    def _commit_replay(self, log: Log, offsets: list[int]) -> None:
        """The member commits the edited map, where the broker takes it and the log still has the records."""
        before = log.map()
        if before is None or not all(one in log.records and before.is_complete(one) for one in offsets):
            return
        edited = replayed(before, offsets)
        assert log.committed is not None
        epoch = log.committed.leader_epoch
        metadata = encode(edited, is_marked=epoch >= 0) if edited.span else ""
        bound = DispatchBound.for_cap(self.settings.broker_metadata_cap)
        if edited.span > bound.max_span and edited.incomplete_count > bound.max_incomplete:
            return
        log.committed = Committed(edited.base, metadata, epoch)
        for one in log.records:
            is_right = edited.is_complete(one) == (before.is_complete(one) and one not in offsets)
            self.check(is_right, "{}: the replay of {} changes {}", log.name, offsets, one)
        log.again.update(offsets)
        self.begun.difference_update((log.partition, one) for one in offsets)
        self.seen["replayed"] += len(offsets)

    def _move(self) -> None:
        """Something happens to a log, or to what is committed of it, while no member has it."""
        log = self.random.choice(self.logs)
        if log.assigned or log.committed is None or (self.transactions and self.transactions.has_part_in(log)):
            return
        choice = self.random.randrange(4 if self.transactions is None else 2)
        if choice <= 1:
            self._cut(log, self.random.randint(log.start, log.end) if choice else log.end)
        elif choice == 2 and (log.committed.leader_epoch >= 0 or not log.committed.metadata):
            back = self.random.randint(0, min(log.committed.offset, log.end))
            self._committed_by_others(log, Committed(back, log.committed.metadata))
            self.seen["copied"] += map_origin(log.committed.metadata, -1) == "copied"
        elif (
            (found := log.map()) is not None
            and found.span
            and found.highest_completed < (log.changed_from() or log.end)
        ):
            self._committed_by_others(log, Committed(found.base, encode(found)))
            self.seen["unmarked"] += 1

    def _cut(self, log: Log, offset: int) -> None:
        """An unclean election. Whose commit has no leader epoch is not told: it is not cut below that."""
        assert log.committed is not None
        least = (
            log.start if log.committed.leader_epoch >= 0 else decode(*reversed(log.committed[:2])).highest_completed + 1
        )
        if offset < max(least, log.start):
            return
        self.seen["cut"] += offset < log.end
        log.cut(offset)
        self.begun = {(partition, one) for partition, one in self.begun if partition != log.partition or one < offset}

    def _committed_by_others(self, log: Log, commit: Committed) -> None:
        log.committed = commit
        self.begun = {
            (partition, one) for partition, one in self.begun if partition != log.partition or log.covers(one)
        }

    def _rule_keys(self, rules: list[KeyRule]) -> None:
        for log in self.logs if self.settings.delivery == "at_most_once" else ():
            log.claimed = {one for one in log.todo if self.engine.is_complete(log.name, one)}
        self.keys = KeyOracle(rules)
        self.engine.rule_keys(rules)

    def _pass_over(self) -> None:
        """What the plan has skipped is complete; at most once what it has claimed is too, and its turn has come."""
        claims = self.settings.delivery == "at_most_once"
        for log in self.logs if self.keys.rules else ():
            for offset, record in list(log.todo.items()):
                is_skipped = self.keys.is_skipped(record)
                if (is_skipped or claims) and offset not in log.claimed and self.engine.is_complete(log.name, offset):
                    if is_skipped:
                        self._passed_over(log, offset)
                    else:
                        log.claimed.add(offset)
                        self.come_to_turn(f"{log.name}@{offset}", record)

    def come_to_turn(self, name: object, record: PlainMessage) -> None:
        broken = self.keys.starts(record, self.now)
        self.check(broken is None, "{} started although {}", name, broken)

    def _passed_over(self, log: Log, offset: int) -> None:
        self.check(offset not in log.running, "{}: {} was skipped while it ran", log.name, offset)
        self.seen["passed over"] += 1
        log.pass_over(offset)

    def _pause(self, names: list[TopicPartition] | None) -> None:
        self.all_paused |= names is None
        self.paused.update(names or ())
        self.engine.pause(names)

    def _resume(self, names: list[TopicPartition] | None) -> None:
        if names is None:
            self.all_paused = False
            self.paused.clear()
        self.paused.difference_update(names or ())
        self.engine.resume(names)

    def _crash(self) -> None:
        """The process dies: what is not committed is forgotten."""
        if self.random.random() < 0.5:
            self.seen["crashed"] += 1
            self._new_engine()

    def _stop(self) -> None:
        if self.random.random() < 0.5:
            self.seen["stopped"] += 1
            self.engine.stop(self.now)

    def _hear(self) -> None:
        """The coordinator answers."""
        self.engine.heard(self.now - self.random.random() * 0.2)

    def _pass_time(self) -> None:
        self.now += self.random.random() * 0.1
        check = self.engine.next_check(self.now)
        if check is not None and check < self.now + MOST_JUMP_S and self.random.random() < 0.5:
            self.now = max(self.now, check)

    # --- what the engine asks for ---

    def _is_noted(self, plan: Plan) -> bool:
        """Whether the store, which is told of commits before they are sent, is the one that it was."""
        commits = [one for one in (plan.commit, *(answer.commit for answer in plan.revoked)) if one is not None]
        return self.store is None or all(self.store.note(one.entries) for one in commits)

    def _act(self, plan: Plan) -> None:
        self.check(not plan.calls or self.now < self.engine.lease_until, "dispatched after the lease had ended")
        self.seen["lease ended"] += self.now >= self.engine.lease_until
        self.workers.hand_over(plan.calls)
        if plan.calls and self.settings.delivery == "almost_once":
            again = sum(len(log.running) + len(log.unacknowledged) for log in self.logs)
            self.check(again <= self.settings.concurrency, "a crash would repeat {} records", again)
        produced = [Sent(one) for one in plan.produce]
        self.workers.send(produced, [Sent(one) for one in plan.results])
        if plan.withdraw:
            self.workers.withdraw()
        for name in plan.pause:
            self.logs[name[1]].paused = True
            self.seen["paused"] += 1
        for name in plan.resume:
            self.logs[name[1]].paused = False
        if plan.commit is not None:
            self._check_entries(plan.commit.entries)
        if self.transactions is not None:
            self.transactions.obey(plan, produced)
        elif plan.commit is not None:
            self.check(self.commit is None, "a commit was planned while one was on its way")
            self.commit = plan.commit
        for answer in plan.revoked:
            if self.commit is not None and self.answer is None:
                self.answer = self._committed(self.commit.entries)  # it was sent before, so it is applied before
            self._check_entries(answer.commit.entries)
            self.engine.commit_answered(answer.commit, self._committed(answer.commit.entries), self.now)
            for log in self._named(answer.token):
                self._let_go(log)
                if (offsets := self.replaying.pop(log.name, None)) is not None:
                    self._commit_replay(log, offsets)
            self.revoking = [name for name in self.revoking if name not in answer.token]
        self.credit = plan.credit

    def _check_entries(self, entries: Sequence[Entry]) -> None:
        """Guarantees 1 and 5, for what a commit is about to say."""
        for entry in entries:
            log = self.logs[entry.name[1]]
            self.check(len(entry.metadata) <= self.settings.metadata_cap, "{}: metadata over the cap", entry.name)
            self.seen["maps"] += bool(entry.metadata)
            marked = map_origin(entry.metadata, entry.leader_epoch) in (None, "own", "unmarked")
            self.check(marked, "{}: a marked map goes without a leader epoch", entry.name)
            for offset in log.todo if self.settings.delivery != "at_most_once" else ():
                if log.said_by(entry, offset) and not self.keys.is_skipped(log.todo[offset]):
                    self.violated(f"{entry.name}: a commit says that {offset} is complete: {entry}")
        if self.engine.left_maps_out:
            smaller = self.settings.broker_metadata_cap < self.settings.metadata_cap
            self.check(smaller, "a map did not fit although the bound holds")

    def _ended(self) -> None:
        """The engine has stopped: by itself because of a halt, or because it was asked to. Another one takes over."""
        failure = self.engine.failure
        if failure is not None:
            self.seen["halted"] += 1
            self.check(isinstance(failure, HandlerError) and "@" in str(failure), "it failed with {!r}", failure)
            if self.store is not None and isinstance(failure.__cause__, StoreError):
                self.store.refused(failure.__cause__)
        self._new_engine()

    def _let_go(self, log: Log) -> None:
        log.assigned = log.paused = False
        log.epoch = -1
        log.rewound = None
        log.running.clear()
        log.todo.clear()
        log.unacknowledged.clear()
        log.given_up.clear()
        log.claimed.clear()

    def _named(self, names: Iterable[TopicPartition]) -> list[Log]:
        return [self.logs[partition] for _, partition in names]

    def check(self, holds: bool, text: str, *about: object) -> None:
        """`text` is a format for `about`, so that it costs nothing where it holds."""
        if not holds:
            self.violated(text.format(*about))

    def violated(self, text: str) -> None:
        again = (
            f"{self.seed} {VARIETY.index(self.settings)} {self._asked}" if self.settings in VARIETY else "(no variety)"
        )
        raise Violation(
            f"{text} (seed {self.seed}, step {self.steps}, {self.settings}); "
            f"again: PYTHONPATH=tests python -m kit.replay {again}"
        )


def _never_called(_: object) -> None:
    """The simulation decides what handlers come to."""


VARIETY = (
    Settings(),
    Settings(ordering="partition"),
    Settings(ordering="unordered", keys=2),
    Settings(keys=2, concurrency=20, on_exhausted=DeadLetter("dead")),
    Settings(keys=5, on_exhausted=Halt(), failure_share=0.04),
    Settings(ordering="unordered", metadata_cap=16, concurrency=30, max_buffered_records=400, failure_share=0.3),
    Settings(metadata_cap=400, broker_metadata_cap=16, keys=50, concurrency=30, max_buffered_records=300),
    Settings(partitions=1, keys=3, gap_share=0.4),
    Settings(keys=3, call_s=1.0, output_share=0.0),
    Settings(ordering="partition", call_s=1.0, failure_share=0.03, output_share=0.0, rebalances=3),
    Settings(results=True, rebalances=2),
    Settings(results=True, keys=2, batch=Batch(8)),
    Settings(later_share=0.2, hands=10, max_uncommitted=20),
    Settings(traversal="depth_first", later_share=0.1, hands=10, keys=4, max_uncommitted=30),
    Settings(rates=Rates(records_per_s=200, per_partition=90, per_key=30), hands=5),
    Settings(rates=Rates(per_key=30), batch=Batch(5), later_share=0.1, deaths=0.1),
    Settings(call_s=1.0, keys=4, output_share=0.02, later_share=0.05, deaths=0.05, hands=5),
    Settings(keys=3, batch=Batch(6)),
    Settings(ordering="partition", batch=Batch(5, min_size=3, linger_ms=30), on_exhausted=DeadLetter("dead")),
    Settings(ordering="unordered", batch=Batch(20, min_size=20, linger_ms=30), rebalances=3),
    Settings(delivery="at_most_once", rebalances=2),
    Settings(delivery="at_most_once", keys=3, batch=Batch(5), concurrency=3, metadata_cap=400, broker_metadata_cap=16),
    Settings(delivery="almost_once", concurrency=3, keys=20, later_share=0.1, rebalances=2),
    Settings(delivery="almost_once", concurrency=1, ordering="unordered", results=True),
    Settings(failure_share=0.6, breaker=Breaker(failures=3, probe_interval_ms=100), rebalances=2, keys=5),
    Settings(failure_share=0.6, breaker=Breaker(failures=3, probe_interval_ms=100), batch=Batch(4), later_share=0.1),
    Settings(rules=15, keys=4, later_share=0.05, call_s=1.0, output_share=0.05, max_uncommitted=60),
    Settings(rules=15, keys=4, batch=Batch(6), hands=5, rates=Rates(per_key=30)),
    Settings(rules=15, ordering="unordered", keys=4, metadata_cap=16, call_s=1.0, results=True, hands=5),
    Settings(rules=15, ordering="partition", keys=4, call_s=1.0, output_share=0.05),
    Settings(rules=15, delivery="at_most_once", keys=4, rebalances=2),
    Settings(rules=15, delivery="almost_once", keys=4, concurrency=3, later_share=0.1),
    Settings(replays=15, keys=4, rules=5, on_exhausted=DeadLetter("dead"), hands=5),
    Settings(replays=15, ordering="partition", call_s=1.0, output_share=0.05, results=True, rebalances=2),
    Settings(replays=15, ordering="unordered", metadata_cap=16, broker_metadata_cap=16, keys=2, batch=Batch(5)),
    Settings(replays=15, delivery="at_most_once", keys=3),
    Settings(replays=15, delivery="almost_once", concurrency=3, keys=20),
    Settings(moves=6, rebalances=3),
    Settings(moves=6, rebalances=3, ordering="unordered", keys=2, gap_share=0.3, call_s=1.0, output_share=0.05),
    Settings(moves=6, rebalances=3, delivery="at_most_once", keys=3),
    Settings(moves=6, rebalances=3, delivery="almost_once", concurrency=3, keys=20),
    Settings(store=10, rebalances=3, on_exhausted=Halt(), failure_share=0.02),
    Settings(store=10, moves=6, rebalances=3, on_exhausted=Halt(), failure_share=0.02, keys=3),
    Settings(throttle_share=0.4, keys=4, call_s=1.0, output_share=0.05, rebalances=2),
    Settings(throttle_share=0.4, failure_share=0.3, batch=Batch(4), on_exhausted=DeadLetter("dead")),
    Settings(urgent=True, keys=4, later_share=0.1, call_s=1.0, rebalances=3, hands=10, max_uncommitted=20),
    Settings(urgent=True, keys=4, batch=Batch(5), rules=15, replays=10, rates=Rates(per_key=30)),
    Settings(urgent=True, ordering="partition", rules=10, replays=10, results=True, rebalances=2),
    Settings(urgent=True, ordering="unordered", metadata_cap=16, broker_metadata_cap=16, batch=Batch(5), moves=3),
    Settings(urgent=True, delivery="at_most_once", keys=4, rules=10, rebalances=2),
)
"""Settings that together reach every branch that a schedule can reach."""
