"""The tracker against a naive model: plain sets, looked at from scratch after every step."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, decode, encode, tracker
from kit.commit_rule import CommitState, Drained, PartitionKey, PartitionOffset, plan_commits
from kit.examples import examples

SMALL = DispatchBound(max_span=20, max_incomplete=4)
KEY = PartitionKey("group", "topic", 0)


class TrackerAgainstModel(RuleBasedStateMachine):
    """Limits are lowered so that short runs cut, thin and jump the window."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = {name: getattr(tracker, name) for name in ("COMPACT_AT", "THIN_AT", "_THIN_SHARE")}

    def teardown(self) -> None:
        for name, value in self.limits.items():
            setattr(tracker, name, value)

    @initialize(
        base=st.integers(0, 50),
        states=st.lists(st.booleans(), max_size=40),
        compact_at=st.sampled_from([1, 4, 4096]),
        thin_at=st.sampled_from([8, 32, 65_536]),
        thin_share=st.sampled_from([1, 4, 64]),
        is_unchecked=st.booleans(),
    )
    def start(
        self, base: int, states: list[bool], compact_at: int, thin_at: int, thin_share: int, is_unchecked: bool
    ) -> None:
        tracker.COMPACT_AT, tracker.THIN_AT, tracker._THIN_SHARE = compact_at, thin_at, thin_share
        self.first = base
        self.complete = {base + i for i, done in enumerate(states) if done}
        self.records = set(self.complete)
        """Offsets known to be records: polled, or complete in the committed map."""
        self.polled: set[int] = set()
        self.reach = max(self.complete, default=base - 1)
        committed = OffsetMap(base, [base + i for i, done in enumerate(states) if not done], base + len(states) - 1)
        self.is_unchecked = is_unchecked
        self.passed = base
        """Unchecked, what the committed map has complete counts for the base only below this."""
        self.ahead = committed.trimmed().highest_completed
        self.tracker = PartitionTracker(committed, is_unchecked=is_unchecked)
        while self.passed in self.complete:
            self.passed += 1
        self.position = self.base
        self.reach = max(self.reach, self.base - 1)
        self.rule_state = CommitState()
        self.rule_commit: int | None = None
        self.news = Drained([], [])

    @property
    def base(self) -> int:
        return self.base_from(self.first)

    def base_from(self, offset: int) -> int:
        """Behind all that is complete from this one on; what an unchecked map says counts once it was passed."""
        while offset in self.complete and (not self.is_unchecked or offset < self.passed):
            offset += 1
        return offset

    def pass_gap(self, stop: int) -> None:
        self.complete |= set(range(self.position, stop))
        self.position = max(self.position, stop)
        self.passed = max(self.passed, self.position)

    def settle(self) -> None:
        """Records that a checked committed map has complete need not be polled for the base to pass them."""
        self.position = max(self.position, self.base)

    # --- steps ---

    @rule(steps=st.lists(st.sampled_from([1] * 12 + [2, 5, 100]), min_size=1, max_size=40))
    def poll(self, steps: list[int]) -> None:
        offsets = [self.position + sum(steps[: i + 1]) - 1 for i in range(len(steps))]
        skipped = set(offsets) & self.complete
        for offset in offsets:
            self.pass_gap(offset)
            self.position = offset + 1
        self.passed = max(self.passed, self.position)
        assert self.tracker.observe(offsets) == len(skipped)
        self.records |= set(offsets)
        self.polled |= set(offsets) - skipped
        self.news.in_flight.extend(PartitionOffset(KEY, o) for o in offsets)
        self.news.completed.extend(PartitionOffset(KEY, o) for o in skipped)
        self.settle()

    @rule(beyond=st.integers(-3, 6))
    def reach_the_end(self, beyond: int) -> None:
        self.tracker.observe_end(self.position + beyond)
        self.pass_gap(self.position + beyond)
        self.settle()

    @rule(beyond=st.integers(-3, 20))
    def lose_to_retention(self, beyond: int) -> None:
        log_start = self.position + beyond
        lost = [o for o in range(self.position, log_start) if o not in self.complete]
        assert self.tracker.drop_below(log_start) == len(lost)
        self.pass_gap(log_start)
        self.settle()

    @precondition(lambda self: self.position <= self.ahead)
    @rule(data=st.data())
    def find_the_log_cut(self, data: st.DataObject) -> None:
        assert self.tracker.committed_until == self.ahead
        cut = data.draw(st.integers(self.position, self.ahead))
        gone = {one for one in self.complete if one >= cut}
        assert self.tracker.cut_committed_map(cut) == len(gone)
        self.complete -= gone
        self.records -= gone
        kept = max((one for one in self.complete if one >= self.position), default=-1)
        self.ahead = kept
        self.reach = max(self.position - 1, kept)

    @precondition(lambda self: self.polled - self.complete)
    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.polled - self.complete)))
        self.tracker.mark_dispatched(offset)
        self.reach = max(self.reach, offset)

    @precondition(lambda self: self.polled - self.complete)
    @rule(data=st.data(), spare_lowest=st.booleans(), twice=st.booleans())
    def finish(self, data: st.DataObject, spare_lowest: bool, twice: bool) -> None:
        pending = sorted(self.polled - self.complete)
        chosen = data.draw(st.lists(st.sampled_from(pending[spare_lowest:] or pending), min_size=1, unique=True))
        self.finished(chosen, [*chosen, chosen[0]] if twice else chosen)

    @precondition(lambda self: self.polled - self.complete)
    @rule(data=st.data(), already=st.integers(0, 5))
    def finish_in_a_row(self, data: st.DataObject, already: int) -> None:
        pending = sorted(self.polled - self.complete)
        first = data.draw(st.sampled_from(pending))
        last = data.draw(st.sampled_from([one for one in pending if one >= first]))
        first = max(self.first, first - already)
        self.finished([one for one in pending if first <= one <= last], list(range(first, last + 1)))

    def finished(self, chosen: list[int], told: list[int]) -> None:
        assert self.tracker.complete(told) == len(chosen)
        self.complete |= set(chosen)
        self.reach = max(self.reach, *chosen)
        self.news.completed.extend(PartitionOffset(KEY, o) for o in chosen)
        self.settle()

    # --- looks ---

    @invariant()
    def state_agrees(self) -> None:
        base = self.base
        assert self.tracker.base == base
        assert self.tracker.position == self.position
        assert self.tracker.pending == len(self.polled - self.complete)
        assert self.tracker.span == max(0, self.reach - base + 1)
        assert self.tracker.incomplete == len(set(range(base, self.reach + 1)) - self.complete)
        for log_end in (self.position, self.position + 7, self.position + 60):
            left = {o for o in range(self.position, log_end) if o not in self.complete} | self.polled - self.complete
            assert self.tracker.remaining(log_end) == len(left), log_end
        for offset in range(self.first - 3, self.position + 50):
            assert self.tracker.is_complete(offset) == (offset < self.first or offset in self.complete), offset

    @invariant()
    def snapshot_agrees_and_round_trips(self) -> None:
        snapshot = self.tracker.snapshot()
        assert snapshot.base == self.base
        assert snapshot.highest_completed == self.tracker.highest_completed
        assert snapshot == snapshot.trimmed()
        for offset in self.records:
            assert snapshot.is_complete(offset) == (offset in self.complete), offset
        assert decode(encode(snapshot), snapshot.base) == snapshot
        if not self.is_unchecked:  # else the map may have its base complete, and a checked one begins behind that
            resumed = PartitionTracker(snapshot)
            assert (resumed.base, resumed.snapshot()) == (snapshot.base, snapshot)

    @invariant()
    def dispatch_decisions_agree(self) -> None:
        limit = self.tracker.dispatch_limit(SMALL)
        base = self.base
        for offset in self.polled:
            within = len([o for o in range(base, offset + 1) if o not in self.complete])
            fits = offset - base + 1 <= SMALL.max_span or within <= SMALL.max_incomplete
            assert (offset <= limit) == (offset <= self.reach or fits)

    @invariant()
    def the_commit_rule_agrees(self) -> None:
        """The rule's offset is the tracker's base, but for gaps and committed maps, of which it knows nothing."""
        commits, self.rule_state = plan_commits(self.rule_state, self.news)
        self.news = Drained([], [])
        self.rule_commit = commits.get(KEY, self.rule_commit)
        if self.rule_commit is not None:
            assert self.base_from(self.rule_commit) == self.base


TestTrackerAgainstModel: Any = TrackerAgainstModel.TestCase
TestTrackerAgainstModel.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
