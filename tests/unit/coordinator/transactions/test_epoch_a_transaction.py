"""Transactions V2 (KIP-890): an epoch of its own for each transaction of a producer that asks for it."""

from __future__ import annotations

import pytest

from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import (
    CLASSIC,
    EPOCH_A_TRANSACTION,
    LAST_EPOCH,
    LAST_USED_EPOCH,
    NO_PRODUCER_ID,
    Producer,
    Transaction,
)
from keylane.wire import codes
from kit.transaction_world import T0, T1, TIMEOUT_MS, World


@pytest.fixture
def world() -> World:
    return World(EPOCH_A_TRANSACTION)


def ended(world: World, *, committed: bool) -> Producer:
    """The producer that a transaction had; it is complete."""
    producer = world.producer()
    assert world.add(producer, T0) == codes.NONE
    assert world.end_to_next(producer, committed=committed) == (producer.producer_id, producer.epoch + 1)
    world.complete()
    return producer


@pytest.mark.parametrize("committed", [True, False])
def test_each_end_gives_the_next_epoch_and_refuses_what_comes_late(world: World, committed: bool) -> None:
    first = ended(world, committed=committed)
    second = world.current.producer
    assert second == (first.producer_id, first.epoch + 1)
    check = world.transactions.check_write
    assert check("x", first, T0) == codes.PRODUCER_FENCED
    assert world.add(first, T0) == codes.PRODUCER_FENCED
    assert world.add(second, T1) == codes.NONE
    assert check("x", second, T1) == codes.NONE
    assert check("x", second, T0) == codes.INVALID_TXN_STATE, "it was of the transaction before"
    assert check("x", first, T1) == codes.PRODUCER_FENCED


def test_the_marker_has_the_next_epoch_already(world: World) -> None:
    producer = world.producer()
    world.add(producer, T0)
    world.end_to_next(producer)
    assert (world.state(), world.current.epoch) == (State.PREPARE_COMMIT, producer.epoch + 1)
    assert world.transactions.check_write("x", producer, T0) == codes.PRODUCER_FENCED
    following = Producer(producer.producer_id, producer.epoch + 1)
    assert world.add(following, T0) == codes.CONCURRENT_TRANSACTIONS
    assert world.end_to_next(producer) == codes.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("committed", [True, False])
def test_what_an_end_of_no_transaction_is_told(world: World, committed: bool) -> None:
    """Apache Kafka's table, of the current epoch and of the one before."""
    producer = world.producer()
    late = Producer(producer.producer_id, producer.epoch - 1)
    for asked in (True, False):
        assert world.end_to_next(late, committed=asked) == codes.PRODUCER_FENCED, "there was no end yet"
    assert world.end_to_next(producer, committed=True) == codes.INVALID_TXN_STATE
    late = ended(world, committed=committed)
    current = world.current.producer
    assert world.end_to_next(late, committed=committed) == current, "the answer was lost"
    assert world.end_to_next(late, committed=not committed) == codes.INVALID_TXN_STATE
    assert world.end_to_next(current, committed=True) == codes.INVALID_TXN_STATE
    older = Producer(late.producer_id, late.epoch - 1)
    newer = Producer(late.producer_id, current.epoch + 1)
    for other in (older, newer):
        assert world.end_to_next(other, committed=committed) == codes.PRODUCER_FENCED
    assert world.end_to_next(Producer(7, current.epoch), committed=committed) == codes.INVALID_PRODUCER_ID_MAPPING
    assert world.current.producer == current, "nothing of it changed anything"


def test_an_abort_of_nothing_raises_the_epoch(world: World) -> None:
    producer = world.producer()
    for _ in range(3):
        world.now += 1
        following = world.end_to_next(producer, committed=False)
        assert following == (producer.producer_id, producer.epoch + 1)
        assert (world.state(), world.current.partitions) == (State.PREPARE_ABORT, frozenset())
        assert world.current.started_ms == world.now, "Kafka's records have the time of the end there"
        world.complete()
        assert isinstance(following, Producer)
        producer = following
    assert world.add(producer, T0) == codes.NONE


def test_an_open_transaction_is_ended_in_its_own_epoch_only(world: World) -> None:
    producer = world.producer()
    world.add(producer, T0)
    for epoch in (producer.epoch - 1, producer.epoch + 1):
        assert world.end_to_next(Producer(producer.producer_id, epoch)) == codes.PRODUCER_FENCED
    assert world.state() is State.ONGOING


def test_epochs_run_out_and_the_end_gives_another_producer_id(world: World) -> None:
    first = world.producer()
    last = Producer(first.producer_id, LAST_USED_EPOCH)
    world.store(world.current._replace(epoch=LAST_USED_EPOCH))
    world.add(last, T0)
    following = world.end_to_next(last)
    assert following == (first.producer_id + 1, 0)
    prepared = world.current
    assert (prepared.producer, prepared.next_producer_id) == ((first.producer_id, LAST_EPOCH), first.producer_id + 1)
    assert world.add(Producer(first.producer_id + 1, 0), T0) == codes.CONCURRENT_TRANSACTIONS, "and not a stranger"
    world.complete()
    assert (world.current.producer, world.current.next_producer_id) == (following, NO_PRODUCER_ID)
    assert world.end_to_next(last) == following, "the answer was lost"
    assert world.end_to_next(last, committed=False) == codes.INVALID_TXN_STATE
    assert world.transactions.check_write("x", last, T0) == codes.INVALID_PRODUCER_ID_MAPPING
    assert isinstance(following, Producer)
    assert world.add(following, T0) == codes.NONE
    assert world.end_to_next(last) == codes.INVALID_PRODUCER_ID_MAPPING, "it has gone on"


@pytest.mark.parametrize(("epoch", "following"), [(5, 6), (LAST_USED_EPOCH, 0)])
def test_a_transaction_that_takes_too_long_leaves_its_producer_the_next_epoch(
    world: World, epoch: int, following: int
) -> None:
    first = world.producer()
    producer = Producer(first.producer_id, epoch)
    world.store(world.current._replace(epoch=epoch))
    world.add(producer, T0)
    world.now += TIMEOUT_MS + 1
    assert isinstance(world.fence(), Transaction)
    assert (world.state(), world.current.epoch) == (State.PREPARE_ABORT, epoch + 1)
    assert world.fence() == codes.NONE
    world.complete()
    assert world.end_to_next(producer, committed=True) == codes.INVALID_TXN_STATE
    assert world.end_to_next(producer, committed=False) == world.current.producer
    assert world.current.epoch == following


def test_a_second_producer_gets_an_epoch_behind_the_fence(world: World) -> None:
    first = world.producer()
    world.add(first, T0)
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    second = world.init()
    assert second == (first.producer_id, first.epoch + 2)
    assert world.end_to_next(first, committed=False) == codes.PRODUCER_FENCED


def test_a_fence_in_the_last_epoch_takes_another_producer_id(world: World) -> None:
    world.producer()
    world.store(world.current._replace(epoch=LAST_USED_EPOCH))
    world.add(world.current.producer, T0)
    assert world.init() == codes.CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.current.producer == (102, 0)
    assert world.init() == (102, 1)


def test_a_producer_that_does_not_ask_for_it_keeps_its_epoch(world: World) -> None:
    producer = world.producer()
    world.add(producer, T0)
    assert world.end(producer) == codes.NONE
    assert (world.current.epoch, world.current.client_version) == (producer.epoch, CLASSIC)
    world.complete()
    assert world.current.producer == producer
    assert world.end(producer) == codes.NONE, "the answer was lost"
    assert world.end_to_next(producer, committed=False) == (producer.producer_id, producer.epoch + 1)


@pytest.mark.parametrize("committed", [True, False])
def test_a_zombie_is_not_given_the_epoch_of_a_classic_producer(world: World, committed: bool) -> None:
    zombie = world.producer()
    successor = world.init()
    assert isinstance(successor, Producer)
    world.add_classic(successor, T0)
    world.end(successor, committed=committed)
    world.complete()
    assert world.end_to_next(zombie, committed=committed) == codes.PRODUCER_FENCED
    assert world.end(successor, committed=committed) == codes.NONE


def test_below_the_level_a_fence_is_the_classic_one() -> None:
    world = World(CLASSIC)
    producer = world.producer()
    world.add(producer, T0)
    world.now += TIMEOUT_MS + 1
    world.fence()
    world.complete()
    assert world.current.producer == (producer.producer_id, producer.epoch + 1)
    assert world.init(producer) == codes.PRODUCER_FENCED, "where the newer fence answers with the epoch that follows"
