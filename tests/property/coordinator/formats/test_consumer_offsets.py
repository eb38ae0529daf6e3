"""Round trips of the coordinator's records, and the hot encoder against the plain one."""

from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.formats import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    TopicCommit,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_batch,
    encode_commit,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    encode_records,
    java_string_hash,
)
from keylane.wire import batches

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TIME = st.integers(0, 1 << 60)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MEMBERS = st.builds(
    MemberValue, TEXT, st.none() | TEXT, TEXT, TEXT, st.integers(0, 9**9), I32, st.binary(), st.binary()
)


@given(TEXT, TEXT, I32)
def test_offset_key_round_trip(group: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(group, topic, partition)) == OffsetKey(group, topic, partition)


@given(TEXT)
def test_group_key_round_trip(group: str) -> None:
    assert decode_key(encode_group_key(group)) == GroupKey(group)


@given(st.builds(OffsetValue, I64, I32, TEXT, I64, st.just(-1)))
def test_offset_value_round_trip(value: OffsetValue) -> None:
    assert decode_offset_value(encode_offset_value(value)) == value


@given(st.builds(OffsetValue, I64, st.just(-1), TEXT, I64, TIME))
def test_expiring_offset_value_round_trip(value: OffsetValue) -> None:
    assert decode_offset_value(encode_offset_value(value)) == value


@given(
    st.builds(GroupValue, TEXT, I32, st.none() | TEXT, st.none() | TEXT, I64, st.lists(MEMBERS, max_size=3).map(tuple))
)
def test_group_value_round_trip(value: GroupValue) -> None:
    assert decode_group_value(encode_group_value(value)) == value


@st.composite
def topic_commits(draw: st.DrawFn) -> TopicCommit:
    # Long runs cross the sizes of the offset delta's varint and of one `pack`.
    count = draw(st.integers(1, 5) | st.sampled_from([63, 64, 65, 255, 256, 257, 600]))
    start = draw(st.integers(0, 1 << 30))
    metadata = draw(st.none() | st.lists(TEXT, min_size=count, max_size=count) if count <= 5 else st.none())
    return TopicCommit(draw(TEXT), range(start, start + count), [draw(I64)] * count, [draw(I32)] * count, metadata)


@given(TEXT, st.lists(topic_commits(), min_size=1, max_size=4), TIME, TIME, st.booleans())
def test_hot_encoder_writes_what_the_plain_one_writes(
    group: str, topics: list[TopicCommit], timestamp: int, base_offset: int, has_expiry: bool
) -> None:
    expires = timestamp + 1 if has_expiry else -1
    records = encode_commit(group, topics, timestamp, expires)
    pairs = [
        (
            encode_offset_key(group, commit.topic, partition),
            encode_offset_value(OffsetValue(offset, epoch, text, timestamp, expires)),
        )
        for commit in topics
        for partition, offset, epoch, text in zip(
            commit.partitions,
            commit.offsets,
            commit.leader_epochs,
            commit.metadata or [""] * len(commit.partitions),
            strict=True,
        )
    ]
    plain = batches.encode_batch(
        [batches.NewRecord(*pair) for pair in pairs], timestamp_ms=timestamp, base_offset=base_offset
    )
    assert b"".join(encode_batch(records, base_offset)) == plain
    assert b"".join(encode_batch(encode_records(pairs, timestamp), base_offset)) == plain


@given(st.lists(st.tuples(st.binary(max_size=90), st.none() | st.binary(max_size=9000)), min_size=1, max_size=70))
def test_tombstones_and_long_values(pairs: list[tuple[bytes, bytes | None]]) -> None:
    batch = b"".join(encode_batch(encode_records(pairs, 5), 100))
    assert batches.check_crc(batch, 0, batches.read_header(batch))
    assert [(r.offset, r.key, r.value) for r in batches.decode_records(batch)] == [
        (100 + n, *pair) for n, pair in enumerate(pairs)
    ]


@given(st.text(st.characters(), max_size=60) | st.text(st.characters(codec="ascii")))
def test_java_hash_is_a_step_for_each_utf_16_unit(text: str) -> None:
    """Names in ASCII are hashed byte by byte; lone surrogates are units too."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % (1 << 32)
    assert java_string_hash(text) % (1 << 32) == value
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
