"""The transactions' shell over a journal: what is durable when, time, and what a restart takes up again."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import OFFSETS_TOPIC, TopicCommit, partition_for
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.offset_service import CommitRequest
from keylane.coordinator.transaction_service import Ports
from keylane.coordinator.transactions.records import encode_transaction_key
from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import (
    CLASSIC,
    EPOCH_A_TRANSACTION,
    LAST_USED_EPOCH,
    TAGGED_RECORDS,
)
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log
from keylane.wire import codes
from keylane.wire.batches import NewRecord, encode_batch, read_header
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.coordinator.transactions.transactional_ids import Producer

OPTIONS = BrokerConfig(offsets_topic_num_partitions=2, transactional_id_expiration_ms=50_000)
LOG_OPTIONS = LogOptions(10_000, 4_096)
TIMEOUT_MS = 1_000


class World:
    """A coordinator, one topic of one partition, a disk and a clock."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.filesystem = SimulatedFileSystem()
        self.log: PartitionLog | None = create_log(self.filesystem, "/t-0", LOG_OPTIONS, InlineExecutor())
        self.ids = 0

    async def open(
        self,
        options: BrokerConfig = OPTIONS,
        *,
        level: int = EPOCH_A_TRANSACTION,
        start_ids_above: Callable[[int], None] = lambda _highest: None,
    ) -> Coordinator:
        coordinator = Coordinator(
            journal=on_files(self.filesystem, "/coordinator", InlineExecutor()),
            options=options,
            partition_count={"t": 1}.get,
            clock=lambda: self.now,
            ports=Ports(
                lambda topic, _partition: self.log if topic == "t" else None,
                self._take,
                start_ids_above=start_ids_above,
                transaction_version=lambda: level,
            ),
        )
        await coordinator.start()
        await coordinator.loaded()
        return coordinator

    async def _take(self) -> int:
        self.ids += 1
        return self.ids

    async def begin(self, coordinator: Coordinator) -> Producer:
        """A transaction with a record in the topic."""
        transactions = coordinator.transactions
        error, producer = await transactions.init_producer_id("x", TIMEOUT_MS, None)
        assert error == codes.NONE
        assert await transactions.add_partitions("x", producer, [("t", 0)]) == codes.NONE
        assert self.log is not None
        data = encode_batch(
            [NewRecord(None, b"v")],
            timestamp_ms=1,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            attributes=0x10,
        )
        durable = self.log.append(data, read_header(data), self.now).durable
        assert durable is not None
        await durable
        return producer


def state_of(coordinator: Coordinator) -> State | None:
    found = coordinator.transactions.ids.get("x")
    return None if found is None else found.state


async def turn_until(is_so: Callable[[], bool]) -> None:
    """Let timers of a millisecond do their work."""
    while not is_so():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


def test_a_commit_is_answered_before_its_markers_are_there() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        assert world.log is not None
        assert await coordinator.transactions.end("x", producer, committed=True) == codes.NONE
        assert state_of(coordinator) is State.PREPARE_COMMIT
        assert world.log.stable_offset == 0
        await coordinator.transactions.settled()
        assert state_of(coordinator) is State.COMPLETE_COMMIT
        assert world.log.stable_offset == world.log.high_watermark == 2
        assert world.log.aborted(0, 2) == []
        await coordinator.close()

    asyncio.run(run())


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    """A client that is told CONCURRENT_TRANSACTIONS would wait much longer."""

    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        transactions = coordinator.transactions
        answers = await asyncio.gather(
            transactions.end("x", producer, committed=True),
            transactions.add_partitions("x", producer, [("t", 0)]),
            transactions.add_partitions("x", producer, [(OFFSETS_TOPIC, 1)]),
        )
        assert [*answers] == [codes.NONE, codes.NONE, codes.NONE]
        assert state_of(coordinator) is State.ONGOING
        assert world.log is not None
        assert world.log.stable_offset == 2, "the marker of the last one is durable"
        await coordinator.close()

    asyncio.run(run())


def test_a_restart_finishes_what_was_prepared() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        assert world.log is not None
        await coordinator.transactions.end("x", producer, committed=False)
        assert world.log.stable_offset == 0, "decided, and not carried out"
        # The process dies here; the log is the same, the coordinator another.
        world.filesystem = world.filesystem.after_kill()
        coordinator = await world.open()
        await coordinator.transactions.settled()
        assert state_of(coordinator) is State.COMPLETE_ABORT
        assert world.log.aborted(0, 9) == [(producer.producer_id, 0)]
        assert await coordinator.transactions.end("x", producer, committed=False) == codes.NONE
        await coordinator.close()

    asyncio.run(run())


def test_an_open_transaction_goes_on_after_a_restart_and_ends_in_time() -> None:
    async def run() -> None:
        world = World()
        producer = await world.begin(await world.open())
        world.filesystem = world.filesystem.after_kill()
        coordinator = await world.open()
        transactions = coordinator.transactions
        assert transactions.check_write("x", producer, ("t", 0)) == codes.NONE
        world.now += TIMEOUT_MS
        await transactions.abort_timed_out()
        assert state_of(coordinator) is State.ONGOING
        world.now += 1
        await transactions.abort_timed_out()
        await transactions.settled()
        assert state_of(coordinator) is State.COMPLETE_ABORT
        assert await transactions.end("x", producer, committed=True) == codes.PRODUCER_FENCED
        assert world.log is not None
        assert world.log.aborted(0, 9) == [(producer.producer_id, 0)]
        await coordinator.close()

    asyncio.run(run())


def test_timers_do_it_by_themselves() -> None:
    async def run() -> None:
        world = World()
        options = BrokerConfig(
            offsets_topic_num_partitions=2,
            transactional_id_expiration_ms=1,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
            transaction_remove_expired_transaction_cleanup_interval_ms=1,
        )
        coordinator = await world.open(options)
        await world.begin(coordinator)
        world.now += TIMEOUT_MS + 1
        await turn_until(lambda: state_of(coordinator) is State.COMPLETE_ABORT)
        world.now += 1
        await turn_until(lambda: state_of(coordinator) is None)
        await coordinator.close()

    asyncio.run(run())


def test_an_expired_id_is_gone_after_a_restart_too() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        error, producer = await coordinator.transactions.init_producer_id("x", TIMEOUT_MS, None)
        assert error == codes.NONE
        world.now += OPTIONS.transactional_id_expiration_ms
        await coordinator.transactions.remove_expired()
        assert state_of(coordinator) is None
        await coordinator.close()
        coordinator = await world.open()
        assert state_of(coordinator) is None
        added = await coordinator.transactions.add_partitions("x", producer, [("t", 0)])
        assert added == codes.INVALID_PRODUCER_ID_MAPPING
        again = await coordinator.transactions.init_producer_id("x", TIMEOUT_MS, None)
        assert again.producer.producer_id > producer.producer_id, "never the same producer id twice"
        await coordinator.close()

    asyncio.run(run())


def test_a_topic_that_is_gone_needs_no_marker() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        assert world.log is not None
        await world.log.close()
        assert await coordinator.transactions.end("x", producer, committed=True) == codes.NONE
        await coordinator.transactions.settled()
        assert state_of(coordinator) is State.COMPLETE_COMMIT
        await coordinator.close()

    asyncio.run(run())


def test_a_failed_disk_decides_nothing() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        world.filesystem.fail_at(world.filesystem.operations + 2)  # the sync of the prepare record
        transactions = coordinator.transactions
        assert await transactions.end("x", producer, committed=True) == codes.KAFKA_STORAGE_ERROR
        assert state_of(coordinator) is State.ONGOING
        assert transactions.refusal == codes.KAFKA_STORAGE_ERROR
        assert (await transactions.init_producer_id("y", TIMEOUT_MS, None)).error == codes.KAFKA_STORAGE_ERROR
        assert transactions.check_write("x", producer, ("t", 0)) == codes.KAFKA_STORAGE_ERROR
        assert world.log is not None
        assert world.log.stable_offset == 0
        await coordinator.close()

    asyncio.run(run())


def test_offsets_of_an_open_transaction_are_kept_over_restarts_and_ended_with_their_topic() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        transactions = coordinator.transactions
        offsets = (OFFSETS_TOPIC, partition_for("g", 2))
        assert await transactions.add_partitions("x", producer, [offsets]) == codes.NONE
        commit = CommitRequest("g", [TopicCommit("t", [0], [5], [-1], ["map"])])
        result = coordinator.commit_in_transaction(commit, "x", producer)
        assert not isinstance(result, int)
        assert result.durable is not None
        await result.durable
        world.filesystem = world.filesystem.after_kill()
        coordinator = await world.open()
        found = coordinator.fetch("g", [("t", [0])], require_stable=True)
        assert not isinstance(found, int)
        assert found[0].errors == [codes.UNSTABLE_OFFSET_COMMIT]
        await coordinator.delete_topic_offsets("t")
        await coordinator.transactions.end("x", producer, committed=True)
        await coordinator.transactions.settled()
        for _ in range(2):
            found = coordinator.fetch("g", [("t", [0])], require_stable=True)
            assert not isinstance(found, int)
            assert list(found[0].columns.offsets) == [-1], "a topic of that name begins anew"
            await coordinator.close()
            coordinator = await world.open()
        await coordinator.close()

    asyncio.run(run())


def test_records_wait_in_order_for_their_partition_to_be_part_of_the_transaction() -> None:
    """KIP-890: a producer sends its records alone, and several at once."""

    async def run() -> None:
        world = World()
        coordinator = await world.open()
        transactions = coordinator.transactions
        _, producer = await transactions.init_producer_id("x", TIMEOUT_MS, None)
        told: list[int] = []
        joining = None
        first, second = [("t", 0)], [("t", 0), (OFFSETS_TOPIC, 1)]
        for number, partitions in enumerate((first, second, first)):
            joining = transactions.join("x", producer, partitions)
            assert joining is not None, "it waits behind those before it, though its partition is there by then"
            joining.when_over(lambda _, number=number: told.append(number), first=True)  # type: ignore[misc]
        assert transactions.check_write("x", producer, ("t", 0)) == codes.INVALID_TXN_STATE, "not durable yet"
        assert joining is not None
        await joining
        assert (told, joining.error) == ([0, 1, 2], codes.NONE)
        assert transactions.join("x", producer, second) is None, "they are part of it"
        assert state_of(coordinator) is State.ONGOING
        await coordinator.close()

    asyncio.run(run())


def test_records_are_not_overtaken_by_those_whose_partition_is_there() -> None:
    """Those that wait may have more for that partition, with earlier sequence numbers."""

    async def run() -> None:
        world = World()
        coordinator = await world.open()
        transactions = coordinator.transactions
        producer = await world.begin(coordinator)
        assert transactions.join("x", producer, [("t", 0)]) is None, "it is part of the transaction"
        waits = transactions.join("x", producer, [("t", 0), (OFFSETS_TOPIC, 1)])
        behind = transactions.join("x", producer, [("t", 0)])
        assert waits is not None
        assert behind is not None
        await behind
        assert waits.done()
        await coordinator.close()

    asyncio.run(run())


def test_partitions_of_a_stranger_do_not_join() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        transactions = coordinator.transactions
        _, producer = await transactions.init_producer_id("x", TIMEOUT_MS, None)
        for stranger, error in (
            (producer._replace(epoch=1), codes.PRODUCER_FENCED),
            (producer._replace(producer_id=77), codes.INVALID_PRODUCER_ID_MAPPING),
        ):
            joining = transactions.join("x", stranger, [("t", 0)])
            assert joining is not None
            await joining
            assert joining.error == error
        assert state_of(coordinator) is State.EMPTY
        await coordinator.close()

    asyncio.run(run())


def test_the_first_records_of_a_transaction_wait_for_the_markers_of_the_last() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        transactions = coordinator.transactions
        producer = await world.begin(coordinator)
        error, following = await transactions.end_to_next_epoch("x", producer, committed=True)
        assert (error, following) == (codes.NONE, producer._replace(epoch=1))
        assert state_of(coordinator) is State.PREPARE_COMMIT
        joining = transactions.join("x", following, [("t", 0)])
        assert joining is not None
        await joining
        assert joining.error == codes.NONE
        assert world.log is not None
        assert world.log.stable_offset == 2, "the marker is durable"
        assert [one.epoch for one in world.log.producers()] == [1], "what comes late of the last one is refused"
        await coordinator.close()

    asyncio.run(run())


def test_the_producer_id_that_follows_is_kept_over_a_restart() -> None:
    async def run() -> None:
        world = World()
        coordinator = await world.open()
        producer = await world.begin(coordinator)
        ids = coordinator.transactions.ids
        current = ids.get("x")
        assert current is not None
        last = producer._replace(epoch=LAST_USED_EPOCH)
        ids.restore("x", current._replace(epoch=LAST_USED_EPOCH))
        error, following = await coordinator.transactions.end_to_next_epoch("x", last, committed=True)
        assert (error, following.epoch) == (codes.NONE, 0)
        assert following.producer_id != producer.producer_id
        assert state_of(coordinator) is State.PREPARE_COMMIT
        world.filesystem = world.filesystem.after_kill()
        highest: list[int] = []
        coordinator = await world.open(start_ids_above=highest.append)
        assert highest == [following.producer_id], "it is given, though nobody has used it yet"
        await coordinator.transactions.settled()
        found = coordinator.transactions.ids.get("x")
        assert found is not None
        assert (found.producer, found.state) == (following, State.COMPLETE_COMMIT)
        again = await coordinator.transactions.end_to_next_epoch("x", last, committed=True)
        assert again == (codes.NONE, following), "the answer was lost"
        await coordinator.close()

    asyncio.run(run())


def test_records_have_the_version_of_the_level() -> None:
    async def run() -> None:
        for level, version in ((CLASSIC, 0), (TAGGED_RECORDS, 1), (EPOCH_A_TRANSACTION, 1)):
            world = World()
            coordinator = await world.open(level=level)
            await world.begin(coordinator)
            await coordinator.close()
            names = world.filesystem.listdir("/coordinator")
            files = b"".join(world.filesystem.read(f"/coordinator/{name}") for name in names)
            key = encode_transaction_key("x")
            after = [files[at + len(key) :][:40] for at in range(len(files)) if files.startswith(key, at)]
            assert after
            head = struct.pack(">hqh", version, 1, 0)
            assert all(head in one for one in after), f"level {level}"

    asyncio.run(run())
