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
from keylane.wire.primitives import int16, int64, tagged

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
        previous_producer_id=draw(I64),
        next_producer_id=draw(I64),
        client_version=draw(st.integers(-(2**15), 2**15 - 1)),
    )


def untagged(value: Transaction) -> Transaction:
    """What a record of version 0 has."""
    return value._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)


VERSIONS = st.integers(0, 1)


@given(NAMES)
def test_keys_come_back(name: str) -> None:
    assert decode_transaction_key(encode_transaction_key(name)) == name


@given(transactions())
def test_values_come_back(value: Transaction) -> None:
    assert decode_transaction(encode_transaction(value, 1)) == value
    assert decode_transaction(encode_transaction(value, 0)) == untagged(value)


@given(transactions(), VERSIONS, st.data())
def test_values_that_are_cut_or_longer_are_refused(value: Transaction, version: int, data: st.DataObject) -> None:
    encoded = encode_transaction(value, version)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for damaged in (cut, encoded + b"\0"):
        with pytest.raises(RecordFormatError):
            decode_transaction(damaged)


def test_the_bytes_are_those_of_apache_kafka() -> None:
    """TransactionLogValue, field by field."""
    value = Transaction(7, 2, 60_000, State.ONGOING, frozenset({("t", 1), ("t", 0), ("a", 5)}), 111, 222)
    assert encode_transaction(value, 0).hex(" ", 2) == bytes.fromhex(
        "0000"  # version
        "0000000000000007 0002 0000ea60 01"  # producer id, epoch, timeout, status
        "00000002 0001 61 00000001 00000005 0001 74 00000002 00000000 00000001"  # partitions
        "00000000000000de 000000000000006f"  # last update, start
    ).hex(" ", 2)
    tagged = value._replace(previous_producer_id=6, next_producer_id=8, client_version=2)
    assert encode_transaction(tagged, 1).hex(" ", 2) == bytes.fromhex(
        "0001"
        "0000000000000007 0002 0000ea60 01"
        "03 02 61 02 00000005 00 02 74 03 00000000 00000001 00"
        "00000000000000de 000000000000006f"
        "03 00 08 0000000000000006 01 08 0000000000000008 02 02 0002"  # tags
    ).hex(" ", 2)
    defaults = encode_transaction(value, 1)
    assert defaults.endswith(bytes.fromhex("000000000000006f 00")), "what has its default is left out"
    empty = Transaction(7, 0, 60_000, State.EMPTY, frozenset(), -1, 222)
    assert encode_transaction(empty, 0)[17:21] == b"\xff\xff\xff\xff", "no partitions are null"
    assert encode_transaction(empty, 1)[17:18] == b"\0"
    assert encode_transaction_key("tx") == b"\0\0\0\x02tx"


@given(transactions(), st.dictionaries(st.integers(3, 2**20), st.binary(max_size=9), max_size=3))
def test_tags_of_newer_writers_are_passed_over(value: Transaction, more: dict[int, bytes]) -> None:
    fields = {0: int64(value.previous_producer_id), 1: int64(value.next_producer_id), 2: int16(value.client_version)}
    body = encode_transaction(untagged(value), 1).removesuffix(b"\0")
    assert decode_transaction(body + tagged(fields | more)) == value


@pytest.mark.parametrize("field", ["03 00 02 0001", "01 02 00", "01 00 08 0000"])
def test_tags_that_are_too_short_are_refused(field: str) -> None:
    body = encode_transaction(Transaction(7, 0, 1, State.EMPTY, frozenset(), -1, 2), 1).removesuffix(b"\0")
    with pytest.raises(RecordFormatError):
        decode_transaction(body + bytes.fromhex(field))


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(RecordFormatError, match="version 2"):
        decode_transaction(b"\0\2" + bytes(60))


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0\0", b"\0\0\0\5abc", b"\0\0\0\1ab", b"\0\0\0\1\xff"])
def test_other_keys_are_refused(key: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode_transaction_key(key)
