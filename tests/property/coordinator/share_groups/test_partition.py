"""A partition of a share group beside a model that knows each offset by itself: whatever members do, whenever the
broker restarts, with dead letters and without."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keylane.coordinator.share_groups.partition import (
    ACCEPT,
    ACKNOWLEDGED,
    ARCHIVING,
    AVAILABLE,
    DONE,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Limits,
    SharePartition,
    State,
)
from keylane.wire import codes

WITHOUT_LETTERS = Limits(lock_ms=100, deliveries=3, in_flight=12)
MEMBERS = ["a", "b", "c"]


class Out(NamedTuple):
    """A record that a member has."""

    member: str
    until_ms: int


class Partitions(RuleBasedStateMachine):
    """`deliveries` and the rest are of each offset; the log is batches, with gaps between some of them."""

    @initialize(start=st.integers(0, 3), has_letters=st.booleans())
    def begin(self, start: int, has_letters: bool) -> None:
        self.limits = WITHOUT_LETTERS._replace(has_letters=has_letters)
        self.unwritten: dict[int, bool] = {}
        """By offset whose letter is to be written: whether it is known that a member rejected it."""
        self.partition = SharePartition(State(start))
        self.state = self.partition.state
        """What is durable."""
        self.log: list[tuple[int, int]] = []
        self.log_end = start
        self.log_start = start
        self.now_ms = 0
        self.out: dict[int, Out] = {}
        self.deliveries: dict[int, int] = {}
        """That have counted, and those that are out."""
        self.ended: dict[int, str] = {}

    def keep(self) -> None:
        self.state = self.partition.state

    @rule(gap=st.sampled_from([0, 0, 0, 2, 30]), size=st.integers(1, 6))
    def produce(self, gap: int, size: int) -> None:
        first = self.log_end + gap
        self.log.append((first, first + size - 1))
        self.log_end = first + size

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 8), is_strict=st.booleans(), reach=st.integers(1, 3))
    def acquire(self, member: str, most: int, is_strict: bool, reach: int) -> None:
        at = self.partition.next_offset
        batches = [one for one in self.log if one[1] >= at][:reach]
        end = batches[-1][1] + 1 if batches else at
        before = self.partition.state
        found = self.partition.acquire(member, (at, end), batches, most, self.limits, self.now_ms, is_strict=is_strict)
        offsets = [offset for one in found for offset in range(one.first, one.last + 1)]
        assert offsets == sorted(set(offsets))
        assert len(offsets) <= most or not is_strict
        held = {offset for first, last in self.log for offset in range(first, last + 1)}
        for one in found:
            for offset in range(one.first, one.last + 1):
                assert offset in held
                assert offset not in self.out, "two have it"
                assert offset not in self.ended, "it comes back"
                self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                assert one.delivered == self.deliveries[offset] <= self.limits.deliveries
                self.out[offset] = Out(member, self.now_ms + self.limits.lock_ms)
        if not found and self.partition.has_room(self.limits):
            free = held - self.out.keys() - self.ended.keys()
            assert not [offset for offset in free if at <= offset < end], "nobody is given what is free"
        if end == at or all(first <= at for first, _ in batches[:1]):
            assert self.partition.state.start >= before.start

    @rule(
        other=st.none() | st.sampled_from(MEMBERS),
        kinds=st.lists(st.sampled_from([GAP, ACCEPT, RELEASE, RELEASE, REJECT, RENEW]), min_size=1, max_size=4),
        place=st.integers(0, 11),
        is_anywhere=st.booleans(),
    )
    def acknowledge(self, other: str | None, kinds: list[int], place: int, is_anywhere: bool) -> None:
        """Mostly of what is out, mostly by whom it is with."""
        out = sorted(self.out)
        first = out[place % len(out)] if out and not is_anywhere else self.partition.start + place
        member = other or self.out.get(first, Out("a", 0)).member
        said = Acknowledgement(first, first + len(kinds) - 1, tuple(kinds))
        before = self.partition.state
        error, is_other = self.partition.acknowledge(member, [said], self.limits, self.now_ms)
        offsets = range(said.first, said.last + 1)
        is_allowed = all(offset in self.out and self.out[offset].member == member for offset in offsets)
        assert (error == codes.NONE) == is_allowed
        assert is_other == (is_allowed and set(kinds) != {RENEW})
        if not is_allowed:
            assert self.partition.state == before
            return
        for offset, kind in zip(offsets, kinds, strict=True):
            if kind == RENEW:
                self.out[offset] = Out(member, self.now_ms + self.limits.lock_ms)
                continue
            del self.out[offset]
            if kind == ACCEPT:
                self.ended[offset] = "accepted"
            elif kind == GAP:
                self.ended[offset] = "a gap"
            elif kind == REJECT or self.deliveries[offset] >= self.limits.deliveries:
                self.give_up(offset, is_rejected=kind == REJECT)
        self.keep()

    def give_up(self, offset: int, *, is_rejected: bool) -> None:
        self.ended[offset] = "given up"
        if self.limits.has_letters:
            self.unwritten[offset] = is_rejected

    @rule(place=st.integers(0, 11), size=st.integers(1, 6))
    def write_letters(self, place: int, size: int) -> None:
        """Of some of those that wait, and of others that do not."""
        first = self.partition.start + place
        self.partition.archive(first, first + size - 1)
        for offset in range(first, first + size):
            self.unwritten.pop(offset, None)
        self.keep()

    @rule(passes_ms=st.sampled_from([1, 40, 100]))
    def tick(self, passes_ms: int) -> None:
        self.now_ms += passes_ms
        late = [offset for offset, out in self.out.items() if out.until_ms <= self.now_ms]
        before = self.partition.state
        assert self.partition.tick(self.limits, self.now_ms) == bool(late)
        assert late or self.partition.state == before
        self.end(late)
        self.keep()

    def end(self, offsets: list[int]) -> None:
        for offset in offsets:
            del self.out[offset]
            if self.deliveries[offset] >= self.limits.deliveries:
                self.give_up(offset, is_rejected=False)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        theirs = [offset for offset, out in self.out.items() if out.member == member]
        assert self.partition.release(member, self.limits) == bool(theirs)
        self.end(theirs)
        self.keep()

    @rule()
    def restart(self) -> None:
        self.partition = SharePartition(self.state)
        for offset in self.out:
            self.deliveries[offset] -= 1
        self.out.clear()
        self.unwritten = dict.fromkeys(self.unwritten, False)

    @rule(by=st.integers(1, 8))
    def trim(self, by: int) -> None:
        """Retention ends records, also those that are out."""
        self.log_start = min(self.partition.start + by, self.log_end)
        self.partition.begin_at(self.log_start)
        self.log = [(max(first, self.log_start), last) for first, last in self.log if last >= self.log_start]
        for offset in [offset for offset in self.out if offset < self.log_start]:
            del self.out[offset]
            self.ended[offset] = "expired"
        self.unwritten = {offset: why for offset, why in self.unwritten.items() if offset >= self.log_start}
        self.keep()

    @invariant()
    def each_record_is_where_it_should_be(self) -> None:
        if not hasattr(self, "partition"):
            return
        partition = self.partition
        state = {offset: batch for batch in partition.state.batches for offset in range(batch.first, batch.last + 1)}
        for first, last in self.log:
            for offset in range(first, last + 1):
                if offset < partition.start:
                    assert offset in self.ended, "it is lost"
                elif offset in self.unwritten:
                    assert state[offset].state == ARCHIVING
                elif offset in self.ended:
                    assert state[offset].state in DONE
                    assert (state[offset].state == ACKNOWLEDGED) == (self.ended[offset] == "accepted")
                elif offset in state:
                    count = self.deliveries.get(offset, 0) - (offset in self.out)
                    assert (state[offset].state, state[offset].delivered) == (AVAILABLE, count)
                else:
                    assert self.deliveries.get(offset, 0) == (offset in self.out)
        until = [out.until_ms for out in self.out.values()]
        assert partition.next_deadline_ms == min(until, default=None)
        assert all(partition.start <= offset < partition.end for offset in self.out)
        assert SharePartition(partition.state).state == partition.state
        given_up = [(one, range(one.first, one.last + 1)) for one in partition.given_up]
        assert {offset: one.is_rejected for one, offsets in given_up for offset in offsets} == self.unwritten
        assert all(one.delivered == self.deliveries[offset] for one, offsets in given_up for offset in offsets)


TestPartitions = Partitions.TestCase
