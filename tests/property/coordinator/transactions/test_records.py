"""Round trips of `__transaction_state` records, and the bytes that Apache Kafka writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.formats import RecordFormatError
from keylane.coordinator.transactions.records import (
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import Transaction

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(State))
    partitions = draw(st.frozensets(st.tuples(NAMES, st.integers(0, 2**31 - 1)), max_size=6))
    return Transaction(
        draw(I64),
        draw(st.integers(-1, 2**15 - 1)),
        draw(st.integers(0, 2**31 - 1)),
        state,
        frozenset() if state is State.EMPTY else partitions,
        draw(I64),
        draw(I64),
    )


@given(NAMES)
def test_keys_come_back(name: str) -> None:
    assert decode_transaction_key(encode_transaction_key(name)) == name


@given(transactions())
def test_values_come_back(value: Transaction) -> None:
    assert decode_transaction(encode_transaction(value)) == value


@given(transactions(), st.data())
def test_values_that_are_cut_or_longer_are_refused(value: Transaction, data: st.DataObject) -> None:
    encoded = encode_transaction(value)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for damaged in (cut, encoded + b"\0"):
        with pytest.raises(RecordFormatError):
            decode_transaction(damaged)


def test_the_bytes_are_those_of_apache_kafka() -> None:
    """Version 0 of TransactionLogValue, field by field."""
    value = Transaction(7, 2, 60_000, State.ONGOING, frozenset({("t", 1), ("t", 0), ("a", 5)}), 111, 222)
    assert encode_transaction(value).hex(" ", 2) == bytes.fromhex(
        "0000"  # version
        "0000000000000007 0002 0000ea60 01"  # producer id, epoch, timeout, status
        "00000002 0001 61 00000001 00000005 0001 74 00000002 00000000 00000001"  # partitions
        "00000000000000de 000000000000006f"  # last update, start
    ).hex(" ", 2)
    empty = Transaction(7, 0, 60_000, State.EMPTY, frozenset(), -1, 222)
    assert encode_transaction(empty)[17:21] == b"\xff\xff\xff\xff", "no partitions are null"
    assert encode_transaction_key("tx") == b"\0\0\0\x02tx"


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0\0", b"\0\0\0\5abc", b"\0\0\0\1ab", b"\0\0\0\1\xff"])
def test_other_keys_are_refused(key: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode_transaction_key(key)
