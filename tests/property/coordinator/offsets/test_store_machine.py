"""Commits, fetches, ended topics, full disks and crashes against a dictionary.

The model is a list of states, one after each accepted change. What clients may see is the last that is durable; what
a restart may find is that one or a later one. Whenever nothing waits, the live state equals what a reader of
`__consumer_offsets` makes of its partitions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import TopicCommit, partition_for
from keylane.coordinator.journal.batch_replay import Replayer
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.batches import batches
from kit.examples import examples
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import TypeVar

    T = TypeVar("T")

GROUPS = ("a", "b", "grüppe-😀")
TOPICS = ("flights", "weather", "none")
PARTITIONS = 5
METADATA_LIMIT = 12
OPTIONS = BrokerConfig(
    offsets_topic_num_partitions=3, offsets_topic_segment_bytes=900, offset_metadata_max_bytes=METADATA_LIMIT
)

Entry = tuple[int, int, str]
State = dict[tuple[str, str, int], Entry]

METADATA = st.sampled_from(["", "", "m", "ä" * METADATA_LIMIT, "😀" * 6, "😀" * 7, "x" * (METADATA_LIMIT + 1), "map\0"])


@st.composite
def topic_commits(draw: st.DrawFn) -> TopicCommit:
    # Partition 5 does not exist, runs and single partitions take different paths, and one may stand twice.
    partitions = draw(
        st.lists(st.integers(0, PARTITIONS), min_size=1, max_size=4)
        | st.just(list(range(PARTITIONS)))
        | st.just([2, 3])
    )
    count = len(partitions)
    offsets = draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count))
    epochs = draw(st.lists(st.integers(-1, 9), min_size=count, max_size=count))
    metadata = draw(st.lists(METADATA, min_size=count, max_size=count) | st.none())
    if metadata is not None and not any(metadata):
        metadata = None
    return TopicCommit(draw(st.sampled_from(TOPICS)), partitions, offsets, epochs, metadata)


class OffsetStoreMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.filesystem = SimulatedFileSystem()
        self.topics = {"flights": PARTITIONS, "weather": PARTITIONS}
        self.states: list[State] = [{}]
        self.unknown: list[State] = []
        """States after commits that a failing disk refused: a restart may find them, for nobody was told otherwise."""
        self.waiting: list[CommitResult] = []
        self.has_failed = False
        self.open()

    def run(self, coroutine: Coroutine[None, None, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def open(self) -> None:
        async def start() -> Coordinator:
            coordinator = Coordinator(
                journal=on_files(self.filesystem, "/coordinator", InlineExecutor()),
                options=OPTIONS,
                partition_count=self.topics.get,
                clock=lambda: 1_700_000_000_000,
            )
            await coordinator.start()
            await coordinator.loaded()
            return coordinator

        self.coordinator = self.run(start())

    def is_refused(self, topic: str, partition: int, metadata: str) -> int:
        if partition >= self.topics.get(topic, 0):
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        is_long = len(metadata.encode("utf-16-le")) // 2 > METADATA_LIMIT
        return codes.OFFSET_METADATA_TOO_LARGE if is_long else codes.NONE

    @rule(group=st.sampled_from(GROUPS), commits=st.lists(topic_commits(), min_size=1, max_size=3))
    def commit(self, group: str, commits: list[TopicCommit]) -> None:
        """Send a commit; it waits for the disk until `settle`."""
        state = dict(self.states[-1])
        expected = []
        for topic, partitions, offsets, epochs, metadata in commits:
            texts = metadata or [""] * len(partitions)
            errors = [self.is_refused(topic, *row) for row in zip(partitions, texts, strict=True)]
            expected.append(errors if any(errors) else None)
            for row, error in enumerate(errors):
                if error == codes.NONE:
                    state[group, topic, partitions[row]] = (offsets[row], epochs[row], texts[row])
        result = self.in_loop(lambda: self.coordinator.commit(CommitRequest(group, commits)))
        if isinstance(result, int):
            assert self.has_failed
            assert result == codes.KAFKA_STORAGE_ERROR
            return
        assert list(result.errors) == expected
        if any(errors is None or codes.NONE in errors for errors in expected):
            self.states.append(state)
            self.waiting.append(result)
        else:
            assert result.durable is None

    def in_loop(self, step: object) -> int | CommitResult:
        async def call() -> int | CommitResult:
            return step()  # type: ignore[operator, no-any-return]

        # Only the step itself runs: what it schedules (the sync) waits for the next turn of the loop.
        return self.run(call())

    @rule()
    def settle(self) -> None:
        """Every commit is answered; those before a failure of the disk well, all others not."""

        async def answers() -> list[bool]:
            good = []
            for result in self.waiting:
                assert result.durable is not None
                try:
                    await result.durable
                    good.append(True)
                except StorageError:
                    good.append(False)
            return good

        good = self.run(answers())
        count = good.count(True)
        assert good == [True] * count + [False] * (len(good) - count), "acknowledged behind a failure"
        assert self.has_failed or all(good)
        end = len(self.states) - len(good) + count
        self.unknown += self.states[end:]
        self.states = self.states[:end]
        self.waiting = []

    @rule(topic=st.sampled_from(["flights", "weather"]))
    def end_topic(self, topic: str) -> None:
        self.settle()
        self.topics.pop(topic, None)
        try:
            self.run(self.coordinator.delete_topic_offsets(topic))
        except StorageError:
            assert self.has_failed
            return
        self.states.append({key: entry for key, entry in self.states[-1].items() if key[1] != topic})

    @rule(topic=st.sampled_from(["flights", "weather"]))
    def make_topic(self, topic: str) -> None:
        if not any(key[1] == topic for key in self.states[-1]):
            self.topics[topic] = PARTITIONS

    @precondition(lambda self: not self.has_failed)
    @rule(later=st.integers(1, 3))
    def disk_fails(self, later: int) -> None:
        self.settle()
        self.filesystem.fail_at(self.filesystem.operations + later)
        self.has_failed = True

    @rule(
        names=st.sampled_from(["lost", "kept"]),
        content=st.sampled_from(["lost", "kept", "torn", "zeroed"]),
        share=st.floats(0, 1),
    )
    def crash(self, names: str, content: str, share: float) -> None:
        """The power goes, whoever waits; a restart finds the last durable state, or one on the way to the last sent."""
        durable = len(self.states) - 1 - len(self.waiting)
        self.filesystem = self.filesystem.after_crash(names=names, content=content, torn_share=share)  # type: ignore[arg-type]
        self.waiting, self.has_failed = [], False
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(asyncio.sleep(0))
        self.loop.close()
        self.loop = asyncio.new_event_loop()
        self.open()
        found = self.live_state()
        gone = {key for state in self.states + self.unknown for key in state if key[1] not in self.topics}
        allowed = [{k: e for k, e in state.items() if k not in gone} for state in self.states[durable:] + self.unknown]
        assert found in allowed
        self.states, self.unknown = [found], []

    def live_state(self) -> State:
        state: State = {}
        for group in GROUPS:
            fetched = self.coordinator.fetch(group, None)
            assert not isinstance(fetched, int)
            for topic, columns, _ in fetched:
                state |= self._rows(group, topic, *columns)
        return state

    def _rows(
        self,
        group: str,
        topic: str,
        partitions: Sequence[int],
        offsets: Sequence[int],
        epochs: Sequence[int],
        metadata: Sequence[str] | None,
    ) -> State:
        texts = metadata or [""] * len(partitions)
        rows = zip(partitions, offsets, epochs, texts, strict=True)
        return {(group, topic, partition): (offset, epoch, text) for partition, offset, epoch, text in rows}

    @invariant()
    def clients_see_what_is_durable(self) -> None:
        if self.has_failed:
            return  # which of the waiting ones became durable shows when they are answered
        # Commits that wait may or may not be durable yet; they become visible whole and in order.
        durable = len(self.states) - 1 - len(self.waiting)
        assert self.live_state() in self.states[durable:]

    @invariant()
    def one_by_one_is_the_same(self) -> None:
        state = self.live_state()
        for group in GROUPS:
            fetched = self.coordinator.fetch(group, [(topic, [4, 0, 2, 9]) for topic in TOPICS])
            assert not isinstance(fetched, int)
            for topic, columns, errors in fetched:
                known = self.topics.get(topic, 0)
                for key, entry in self._rows(group, topic, *columns).items():
                    assert entry == state.get(key, (-1, -1, ""))
                expected = [codes.NONE if p < known else codes.UNKNOWN_TOPIC_OR_PARTITION for p in columns.partitions]
                assert (errors or [codes.NONE] * 4) == expected

    @precondition(lambda self: not self.waiting)
    @invariant()
    def readers_of_the_log_see_the_same(self) -> None:
        image = Image()
        store, replayer = image.store, Replayer(image)
        for partition in range(OPTIONS.offsets_topic_num_partitions):
            offset = 0
            while offset < self.coordinator.end_offset(partition):
                data = self.run(self.coordinator.read(partition, offset, 300))
                for position, header in batches(data):
                    # A snapshot since the last read may have put records into other batches.
                    assert header.next_offset > offset, "the same batch twice"
                    replayer.replay(partition, data[position : position + header.length])
                    offset = header.next_offset
                assert data, "there is more to read"
        state: State = {}
        for group in store.groups:
            for topic, columns in store.fetch_all(group):
                state |= self._rows(group, topic, *columns)
        assert state == self.live_state()
        assert len(store) == len(state)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.settle()
            self.run(self.coordinator.close())
            self.loop.close()


def test_groups_stand_in_different_partitions() -> None:
    assert len({partition_for(group, 3) for group in GROUPS}) > 1


TestOffsetStore = OffsetStoreMachine.TestCase
TestOffsetStore.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
