from __future__ import annotations

import pytest

from keylane.storage.producers import (
    LAST_SEQUENCE,
    OutOfOrderSequenceError,
    ProducerEpochError,
    Producers,
    last_sequence,
)
from keylane.wire.batches import BatchHeader, NewRecord, encode_batch, read_header


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 5) -> BatchHeader:
    records = [NewRecord(None, b"v")] * count
    return read_header(
        encode_batch(records, timestamp_ms=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def append(producers: Producers, batch: BatchHeader, offset: int, now_ms: int = 0) -> None:
    assert producers.check(batch) is None
    producers.record(batch, offset, now_ms)


def test_batches_in_sequence_are_taken() -> None:
    producers = Producers()
    append(producers, header(0, 3), 0)
    append(producers, header(3, 2), 3)
    append(producers, header(5), 5)


def test_an_unknown_producer_may_start_anywhere() -> None:
    append(Producers(), header(41), 0)


def test_the_last_five_batches_are_answered_with_their_offset() -> None:
    producers = Producers()
    for number in range(7):
        append(producers, header(number * 2, 2), 100 + number * 2)
    for number in range(2, 7):
        repeated = producers.check(header(number * 2, 2))
        assert repeated is not None
        assert (repeated.base_offset, repeated.last_offset) == (100 + number * 2, 101 + number * 2)
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(header(2, 2))  # repeated, too, but no longer remembered


@pytest.mark.parametrize("batch", [header(4), header(2), header(1, 2), header(3 + 5)])
def test_a_gap_or_an_overlap_is_refused(batch: BatchHeader) -> None:
    producers = Producers()
    append(producers, header(0, 3), 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(batch)


def test_sequences_wrap() -> None:
    producers = Producers()
    assert last_sequence(header(LAST_SEQUENCE, 1)) == LAST_SEQUENCE
    assert last_sequence(header(LAST_SEQUENCE, 3)) == 1
    append(producers, header(LAST_SEQUENCE - 1, 2), 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(header(1))
    append(producers, header(0), 2)

    across = Producers()
    append(across, header(LAST_SEQUENCE, 3), 0)
    assert across.check(header(LAST_SEQUENCE, 3)) is not None
    append(across, header(2), 3)


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    producers = Producers()
    append(producers, header(0, 3), 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(header(3, epoch=1))
    append(producers, header(0, epoch=1), 3)
    with pytest.raises(ProducerEpochError, match="epoch 1 has fenced"):
        producers.check(header(3))
    assert producers.check(header(0, epoch=1)) is not None


def test_producers_are_apart_and_expire() -> None:
    producers = Producers()
    append(producers, header(0, producer_id=1), 0, now_ms=10)
    append(producers, header(0, producer_id=2), 1, now_ms=20)
    producers.expire(before_ms=20)
    assert len(producers) == 1
    append(producers, header(9, producer_id=1), 2)
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(header(9, producer_id=2))


def test_a_snapshot_restores_everything() -> None:
    producers = Producers()
    for number in range(6):
        append(producers, header(number), number, now_ms=number)
    restored = Producers.restore(producers.snapshot())
    assert restored.snapshot() == producers.snapshot()
    repeated = restored.check(header(3))
    assert repeated is not None
    assert repeated.base_offset == 3
    append(restored, header(6), 6)
