"""The transactional ids as a state machine: requests in, decisions out."""

from __future__ import annotations

import pytest

from keylane.coordinator.transactions.states import IDLE, TRANSITIONS, State
from keylane.coordinator.transactions.transactional_ids import (
    CLASSIC,
    LAST_USED_EPOCH,
    NO_EPOCH,
    Producer,
    Transaction,
    fenced,
)
from keylane.wire import codes
from kit.transaction_world import T0, T1, TIMEOUT_MS, World


@pytest.fixture
def world() -> World:
    return World()


def test_every_state_can_be_reached_and_only_dead_is_left_by_nothing() -> None:
    reached = {State.EMPTY} | {row.target for row in TRANSITIONS}
    assert reached == set(State)
    assert set(State) - {row.source for row in TRANSITIONS} == {State.DEAD}
    assert {row.source for row in TRANSITIONS if row.target is State.DEAD} == IDLE


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_from_begin_to_end(world: World, committed: bool) -> None:
    producer = world.producer()
    assert producer == (101, 0)
    assert world.add(producer, T0) == codes.NONE
    assert world.add(producer, T1, T0) == codes.NONE
    assert world.current.partitions == {T0, T1}
    assert world.end(producer, committed=committed) == codes.NONE
    assert world.state() is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT)
    assert world.add(producer, T0) == codes.CONCURRENT_TRANSACTIONS
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.state() is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)
    assert world.current.partitions == frozenset()
    assert world.add(producer, T1) == codes.NONE
    assert world.current.partitions == {T1}


def test_nothing_is_decided_while_a_change_is_under_way(world: World) -> None:
    producer = world.producer()
    world.add(producer, T0)
    decided = world.transactions.end("x", producer, committed=True, now_ms=world.now)
    assert isinstance(decided, Transaction)
    world.transactions.begin("x", decided)
    assert world.state() is State.ONGOING, "served is what is durable"
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    assert world.add(producer, T1) == codes.CONCURRENT_TRANSACTIONS
    assert world.end(producer) == codes.CONCURRENT_TRANSACTIONS
    assert world.transactions.timed_out(world.now + TIMEOUT_MS + 1) == []
    world.transactions.stored("x")
    assert world.state() is State.PREPARE_COMMIT


def test_writes_belong_to_an_open_transaction_with_their_partition(world: World) -> None:
    producer = world.producer()
    check = world.transactions.check_write
    assert check("x", producer, T0) == codes.INVALID_TXN_STATE
    world.add(producer, T0)
    assert check("x", producer, T0) == codes.NONE
    assert check("x", producer, T1) == codes.INVALID_TXN_STATE
    assert check("y", producer, T0) == codes.INVALID_PRODUCER_ID_MAPPING
    assert check("x", producer._replace(producer_id=7), T0) == codes.INVALID_PRODUCER_ID_MAPPING
    assert check("x", producer._replace(epoch=1), T0) == codes.PRODUCER_FENCED
    assert check("", producer, T0) == codes.INVALID_REQUEST


def test_a_write_beside_a_partition_that_is_being_added_is_taken_and_one_beside_the_end_is_not(world: World) -> None:
    producer = world.producer()
    world.add(producer, T0)
    more = world.transactions.add_partitions("x", producer, [T1], world.now)
    assert isinstance(more, Transaction)
    world.transactions.begin("x", more)
    assert world.transactions.check_write("x", producer, T0) == codes.NONE
    assert world.transactions.check_write("x", producer, T1) == codes.INVALID_TXN_STATE, "its adding is not durable"
    world.transactions.stored("x")
    end = world.transactions.end("x", producer, committed=True, now_ms=world.now)
    assert isinstance(end, Transaction)
    world.transactions.begin("x", end)
    assert world.transactions.check_write("x", producer, T0) == codes.CONCURRENT_TRANSACTIONS
    world.transactions.stored("x")
    assert world.transactions.check_write("x", producer, T0) == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.transactions.check_write("x", producer, T0) == codes.INVALID_TXN_STATE


def test_the_answer_to_a_repeated_end_is_the_same(world: World) -> None:
    producer = world.producer()
    assert world.end(producer) == codes.INVALID_TXN_STATE, "there is no transaction"
    world.add(producer, T0)
    world.end(producer)
    assert world.end(producer) == codes.CONCURRENT_TRANSACTIONS
    assert world.end(producer, committed=False) == codes.INVALID_TXN_STATE
    world.complete()
    assert world.end(producer) == codes.NONE
    assert world.end(producer, committed=False) == codes.INVALID_TXN_STATE


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(world: World) -> None:
    first = world.producer()
    world.add(first, T0)
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    assert world.state() is State.PREPARE_ABORT
    assert world.current.epoch == first.epoch + 1, "markers carry an epoch that nobody was given"
    assert world.end(first) == codes.PRODUCER_FENCED
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.init() == (first.producer_id, first.epoch + 2)
    assert world.add(first, T0) == codes.PRODUCER_FENCED
    assert world.transactions.check_write("x", first, T0) == codes.PRODUCER_FENCED


def test_a_producer_goes_on_with_the_epoch_it_has(world: World) -> None:
    """KIP-360."""
    first = world.producer()
    second = world.init(first)
    assert second == (first.producer_id, 1)
    assert world.init(first) == second, "the answer was lost"
    assert world.init() == (first.producer_id, 2), "another producer"
    assert world.init(first) == codes.PRODUCER_FENCED
    assert world.init(Producer(first.producer_id, 1)) == codes.PRODUCER_FENCED
    assert world.init(Producer(55, 2)) == codes.PRODUCER_FENCED


def test_epochs_run_out_and_a_new_producer_id_takes_over(world: World) -> None:
    first = world.producer()
    world.store(world.current._replace(epoch=LAST_USED_EPOCH))
    last = Producer(first.producer_id, LAST_USED_EPOCH)
    assert world.init(last) == (102, 0)
    assert world.current.previous_producer_id == first.producer_id
    assert world.init(last) == (102, 0), "the answer was lost"
    world.store(world.current._replace(epoch=LAST_USED_EPOCH))
    assert world.init() == (103, 0)
    assert world.current.last_epoch == NO_EPOCH
    assert world.init(last) == codes.PRODUCER_FENCED


def test_the_last_epoch_can_still_be_fenced(world: World) -> None:
    world.producer()
    world.store(world.current._replace(epoch=LAST_USED_EPOCH))
    world.add(world.current.producer, T0)
    assert fenced(world.current, world.now, CLASSIC, None).epoch == LAST_USED_EPOCH + 1
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.init() == (102, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_range_are_refused(world: World, timeout_ms: int) -> None:
    decided = world.transactions.init("x", timeout_ms, None, 5, world.now, CLASSIC)
    assert decided == codes.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("name", ["", "x" * 32_768])
def test_names_that_no_record_can_hold_are_refused(world: World, name: str) -> None:
    assert world.init(name=name) == codes.INVALID_REQUEST


def test_time_runs_from_the_first_partition(world: World) -> None:
    producer = world.producer()
    world.now += 10 * TIMEOUT_MS
    assert world.transactions.timed_out(world.now) == []
    world.add(producer, T0)
    world.now += TIMEOUT_MS
    world.add(producer, T1)
    assert world.transactions.timed_out(world.now) == []
    assert world.transactions.timed_out(world.now + 1) == ["x"]
    world.end(producer)
    assert world.transactions.timed_out(world.now + 1) == []


def test_ids_expire_without_a_transaction_only(world: World) -> None:
    producer = world.producer()
    expired = world.transactions.expired
    assert expired(world.now + 999_999) == []
    assert expired(world.now + 1_000_000) == ["x"]
    world.add(producer, T0)
    assert expired(world.now + 9_000_000) == []
    world.end(producer)
    assert expired(world.now + 9_000_000) == []
    world.complete()
    assert expired(world.now + 1_000_000) == ["x"]
    world.transactions.begin("x", None)
    world.transactions.stored("x")
    assert len(world.transactions) == 0
    assert world.add(producer, T0) == codes.INVALID_PRODUCER_ID_MAPPING
