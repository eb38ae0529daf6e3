"""Round trips of the records of share groups and of their states."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.formats import RecordFormatError
from keylane.coordinator.share_groups.partition import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, Batch, State
from keylane.coordinator.share_groups.records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    TOPICS,
    Current,
    Group,
    Member,
    Place,
    PlacedTopic,
    Record,
    Target,
    TargetEpoch,
    Topics,
    decode,
    decode_state,
    decode_state_key,
    encode,
    encode_state,
    encode_state_key,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
INTS = st.integers(0, 2**31 - 1)
LONGS = st.integers(0, 2**63 - 1)
ASSIGNED = st.dictionaries(st.uuids(), st.frozensets(INTS, min_size=1, max_size=4), max_size=4)
RECORDS = st.one_of(
    st.builds(
        Record,
        st.just(MEMBER),
        TEXTS,
        st.builds(Member, st.none() | TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=4).map(tuple)),
    ),
    st.builds(Record, st.just(GROUP), st.just(""), st.builds(Group, INTS, st.integers(-(2**63), 2**63 - 1))),
    st.builds(Record, st.just(TARGET_EPOCH), st.just(""), st.builds(TargetEpoch, INTS, LONGS)),
    st.builds(Record, st.just(TARGET), TEXTS, st.builds(Target, ASSIGNED)),
    st.builds(Record, st.just(CURRENT), TEXTS, st.builds(Current, INTS, INTS, ASSIGNED)),
    st.builds(
        Record,
        st.just(TOPICS),
        st.just(""),
        st.builds(
            Topics,
            st.dictionaries(st.uuids(), st.builds(PlacedTopic, TEXTS, st.frozensets(INTS, max_size=4)), max_size=4),
        ),
    ),
)


@given(group=TEXTS, record=RECORDS, is_gone=st.booleans())
def test_records(group: str, record: Record, is_gone: bool) -> None:
    record = record._replace(value=None) if is_gone else record
    key, value = encode(group, record)
    assert decode(key, value) == (group, record)


@given(
    place=st.builds(Place, TEXTS, st.uuids(), INTS),
    state=st.builds(
        State,
        LONGS,
        INTS,
        st.lists(
            st.builds(
                Batch,
                LONGS,
                LONGS,
                st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED]),
                st.integers(0, 2**15 - 1),
            ),
            max_size=4,
        ).map(tuple),
    ).filter(lambda state: abs(state.done) < 2**31),
)
def test_states(place: Place, state: State) -> None:
    assert decode_state_key(encode_state_key(place)) == place
    assert decode_state(encode_state(state, 1)) == state


def test_what_is_no_record() -> None:
    key, value = encode("g", Record(GROUP, "", Group(3, 4)))
    assert value is not None
    for wrong in (value[:-1], value + b"\0", b"\0\1" + value[2:]):
        with pytest.raises(RecordFormatError, match="a record of a share group"):
            decode(key, wrong)
    assert decode(b"\0\3\0\1g", b"") is None
    state = encode_state(State(5, 1, (Batch(5, 6, ARCHIVED, 2),)), 1)
    with pytest.raises(RecordFormatError, match="a share group's state"):
        decode_state(state[:-1])
    with pytest.raises(RecordFormatError, match="state 1 of records: 0, 2, 3 and 4 are known"):
        decode_state(encode_state(State(5, 1, (Batch(5, 6, 1, 2),)), 1))
    with pytest.raises(RecordFormatError, match="key version 1: 0 is read"):
        decode_state_key(b"\0\1" + encode_state_key(Place("g", uuid.UUID(int=1), 0))[2:])
