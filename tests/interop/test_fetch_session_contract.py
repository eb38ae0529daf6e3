"""What a broker answers to fetches in sessions (KIP-227), field by field: the same on ours and on Apache Kafka."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import peers
import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch
from keylane.wire.versions import entity, request_type
from kit.protocol import ProtocolClient, decode_answer, part, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Partition = tuple[str, int]

NO_TIME = datetime.timedelta(0)
LONG = datetime.timedelta(seconds=15)
MINUTE = datetime.timedelta(minutes=1)
NUMBERS = itertools.count()
VERSIONS = range(7, 13)
NO_SESSION, INITIAL, FINAL = 0, 0, -1
CACHE = 8
"""Slots: Apache Kafka divides them among eight shards, which it uses in turns."""


class Answer(NamedTuple):
    """Of a fetch, with the values of its records in place of their bytes."""

    error_code: ErrorCode
    session_id: int
    told: list[tuple[Partition, dict[str, Any]]]

    @property
    def partitions(self) -> list[Partition]:
        return [partition for partition, _ in self.told]

    def values(self) -> dict[Partition, list[bytes | None]]:
        return {partition: fields["records"] for partition, fields in self.told if fields["records"]}


class Consumer:
    """One connection that fetches, in a session or not."""

    def __init__(self, client: ProtocolClient, version: int = 12) -> None:
        self.client = client
        self.version = version

    def send(
        self, session_id: int, epoch: int, wanted: dict[Partition, int], *forgotten: Partition, **options: Any
    ) -> None:
        """`wanted`: the offset of each partition; neighbours of one topic go together, in this order."""
        kind = request_type("fetch", self.version)
        values = {
            "max_wait": NO_TIME, "min_bytes": 1, "max_bytes": 10_000_000, "isolation_level": 0,
            "session_id": session_id, "session_epoch": epoch,
            "topics": tuple(
                part("fetch", self.version, "FetchTopic", topic=topic, partitions=tuple(
                    part(
                        "fetch", self.version, "FetchPartition", partition=index, fetch_offset=wanted[topic, index],
                        partition_max_bytes=options.get("partition_max_bytes", 1_000_000),
                        current_leader_epoch=options.get("leader_epoch", -1),
                    )
                    for _, index in ones
                ))
                for topic, ones in itertools.groupby(wanted, lambda one: one[0])
            ),
            "forgotten_topics_data": tuple(
                part("fetch", self.version, "ForgottenTopic", topic=topic, partitions=(index,))
                for topic, index in forgotten
            ),
        }  # fmt: skip
        self.client.send("fetch", entity(kind, **(values | {k: v for k, v in options.items() if k in values})))

    def receive(self) -> Answer:
        _, answer = decode_answer("fetch", self.version, self.client.receive())
        told = []
        for topic in answer.responses:
            for one in topic.partitions:
                fields = dataclasses.asdict(one)
                data = fields.pop("records") or b""
                values = [record.value for at, _ in batches(data) for record in decode_records(data, at)]
                told.append(((topic.topic, fields.pop("partition_index")), fields | {"records": values}))
        return Answer(answer.error_code, answer.session_id, told)

    def fetch(
        self, session_id: int, epoch: int, wanted: dict[Partition, int] | None = None, *rest: Any, **options: Any
    ) -> Answer:
        self.send(session_id, epoch, wanted or {}, *rest, **options)
        return self.receive()

    def open(self, wanted: dict[Partition, int], **options: Any) -> int:
        answer = self.fetch(NO_SESSION, INITIAL, wanted, **options)
        assert (answer.error_code, answer.session_id > 0) == (ErrorCode.none, True)
        return answer.session_id


class Topics:
    """Makes topics, fills them, and deletes them."""

    def __init__(self, bootstrap: str) -> None:
        self.client = ProtocolClient(bootstrap)

    def create(self, partitions: int, name: str | None = None) -> list[Partition]:
        name = name or f"fetched-{next(NUMBERS)}"
        wanted = part(
            "create_topics", 7, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1,
            assignments=(), configs=(),
        )  # fmt: skip
        (answer,) = self.client.ask("create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False).topics
        assert answer.error_code == ErrorCode.none, answer.error_message
        found = [(name, index) for index in range(partitions)]
        whole = Consumer(self.client)
        until(
            lambda: {fields["error_code"] for _, fields in whole.fetch(0, FINAL, dict.fromkeys(found, 0)).told},
            lambda codes: codes == {ErrorCode.none},
        )
        return found

    def delete(self, name: str) -> None:
        answer = self.client.ask("delete_topics", 5, topic_names=(name,), timeout=MINUTE)
        assert answer.responses[0].error_code == ErrorCode.none

    def append(self, partition: Partition, *values: bytes) -> None:
        topic, index = partition
        data = encode_batch([NewRecord(None, value) for value in values], timestamp_ms=time.time_ns() // 1_000_000)
        piece = part("produce", 9, "PartitionProduceData", index=index, records=data)
        topics = (part("produce", 9, "TopicProduceData", name=topic, partition_data=(piece,)),)
        answer = self.client.ask("produce", 9, transactional_id=None, acks=-1, timeout=MINUTE, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none

    def delete_before(self, partition: Partition, offset: int) -> None:
        row = part("delete_records", 2, "DeleteRecordsPartition", partition_index=partition[1], offset=offset)
        topics = (part("delete_records", 2, "DeleteRecordsTopic", name=partition[0], partitions=(row,)),)
        answer = self.client.ask("delete_records", 2, topics=topics, timeout=MINUTE).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.none


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    found = Topics(bootstrap)
    yield found
    found.client.close()


@pytest.fixture
def consumer(client: ProtocolClient) -> Consumer:
    return Consumer(client)


def fields_of(version: int, end: int, *values: bytes, start: int = 0, **others: Any) -> dict[str, Any]:
    """What a partition's answer has in this version."""
    from kio.schema.fetch.v12.response import EpochEndOffset, LeaderIdAndEpoch, SnapshotId

    fields: dict[str, Any] = {
        "error_code": ErrorCode.none, "high_watermark": end, "last_stable_offset": end, "log_start_offset": start,
        "aborted_transactions": None, "records": list(values),
    }  # fmt: skip
    if version >= 11:
        fields["preferred_read_replica"] = -1
    if version >= 12:
        fields |= {
            "diverging_epoch": dataclasses.asdict(EpochEndOffset()),
            "current_leader": dataclasses.asdict(LeaderIdAndEpoch()),
            "snapshot_id": dataclasses.asdict(SnapshotId()),
        }
    return fields | others


def failed(version: int, error_code: ErrorCode, **others: Any) -> dict[str, Any]:
    return fields_of(version, -1, start=-1, error_code=error_code, **others)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_tells_what_has_changed(topics: Topics, client: ProtocolClient, version: int) -> None:
    consumer = Consumer(client, version)
    first, second = topics.create(2)
    (third,) = topics.create(1)
    topics.append(second, b"a", b"b")
    opened = consumer.fetch(NO_SESSION, INITIAL, {first: 0, second: 0, third: 0})
    session_id = opened.session_id
    assert session_id > 0
    assert opened.told == [
        (first, fields_of(version, 0)),
        (second, fields_of(version, 2, b"a", b"b")),
        (third, fields_of(version, 0)),
    ]
    epochs = itertools.count(1)

    def told(*args: Any, **options: Any) -> list[tuple[Partition, dict[str, Any]]]:
        answer = consumer.fetch(session_id, next(epochs), *args, **options)
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, session_id)
        return answer.told

    assert told() == [(second, fields_of(version, 2, b"a", b"b"))], "it was asked from there on once more"
    assert told({second: 2}) == []
    assert told() == []
    topics.append(third, b"c")
    assert told() == [(third, fields_of(version, 1, b"c"))]
    topics.append(first, b"d")
    assert told({third: 1}) == [(first, fields_of(version, 1, b"d"))]
    topics.append(third, b"e")
    assert told({first: 1, third: 2}) == [(third, fields_of(version, 2))], "another high watermark"
    topics.delete_before(second, 1)
    assert told() == [(second, fields_of(version, 2, start=1))], "another log start offset"
    assert told({second: 0}) == [(second, failed(version, ErrorCode.offset_out_of_range))]
    assert told() == [(second, failed(version, ErrorCode.offset_out_of_range))], "as long as it is there"
    assert told({second: 2}) == [(second, fields_of(version, 2, start=1))], "its end"
    assert told() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_come_and_are_forgotten(topics: Topics, client: ProtocolClient, version: int) -> None:
    consumer = Consumer(client, version)
    first, second, third = topics.create(3)
    session_id = consumer.open({first: 0, second: 0})
    for partition in (first, second, third):
        topics.append(partition, b"a")
    answer = consumer.fetch(session_id, 1, {third: 1}, first)
    assert answer == (
        ErrorCode.none, session_id, [(second, fields_of(version, 1, b"a")), (third, fields_of(version, 1))],
    )  # fmt: skip
    assert consumer.fetch(session_id, 2, {second: 1, first: 1}) == (
        ErrorCode.none, session_id, [(first, fields_of(version, 1))],
    )  # fmt: skip
    assert consumer.fetch(session_id, 3, {}, ("nobody", 5)) == (ErrorCode.none, session_id, [])
    assert consumer.fetch(session_id, 4, {first: 0}, first, second, third) == (
        ErrorCode.none, NO_SESSION, [(first, fields_of(version, 1, b"a"))],
    ), "without partitions it is over"  # fmt: skip
    assert consumer.fetch(session_id, 5) == (ErrorCode.fetch_session_id_not_found, NO_SESSION, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_does_not_exist(topics: Topics, client: ProtocolClient, version: int) -> None:
    """It comes last, and again and again; the others go on."""
    consumer = Consumer(client, version)
    (first,) = topics.create(1)
    nobody, missing = ("nobody", 0), (first[0], 1)
    error = failed(version, ErrorCode.unknown_topic_or_partition, aborted_transactions=())
    opened = consumer.fetch(NO_SESSION, INITIAL, {nobody: 0, missing: 0, first: 0})
    assert opened.told == [(first, fields_of(version, 0)), (nobody, error), (missing, error)]
    assert consumer.fetch(opened.session_id, 1).told == [(nobody, error), (missing, error)]
    topics.append(first, b"a")
    told = consumer.fetch(opened.session_id, 2, {}, nobody).told
    assert told == [(first, fields_of(version, 1, b"a")), (missing, error)]
    whole = consumer.fetch(NO_SESSION, FINAL, {nobody: 0, first: 0}).told
    assert whole == [(first, fields_of(version, 1, b"a")), (nobody, error)]


def test_epochs_and_ids_that_are_wrong(topics: Topics, consumer: Consumer) -> None:
    (first,) = topics.create(1)
    session_id = consumer.open({first: 0})
    topics.append(first, b"a")
    wrong_epoch = Answer(ErrorCode.invalid_fetch_session_epoch, NO_SESSION, [])
    for epoch in (2, 99, -2, 2**31 - 1):
        assert consumer.fetch(session_id, epoch, {first: 0}, max_wait=LONG) == wrong_epoch
    assert consumer.fetch(session_id, 1).values() == {first: [b"a"]}, "what was refused changed nothing"
    assert consumer.fetch(session_id, 1) == wrong_epoch
    not_found = Answer(ErrorCode.fetch_session_id_not_found, NO_SESSION, [])
    assert consumer.fetch(session_id ^ 1, 2, {first: 0}, max_wait=LONG) == not_found
    assert consumer.fetch(NO_SESSION, 1) == not_found
    assert consumer.fetch(session_id, 2, leader_epoch=9).values() == {first: [b"a"]}


@pytest.mark.parametrize("epoch", [INITIAL, FINAL])
def test_a_full_fetch_closes_the_session_that_it_names(topics: Topics, consumer: Consumer, epoch: int) -> None:
    (first,) = topics.create(1)
    session_id, other = consumer.open({first: 0}), consumer.open({first: 0})
    answer = consumer.fetch(session_id, epoch, {first: 0})
    assert answer.told == [(first, fields_of(12, 0))]
    assert answer.session_id not in (session_id, other)
    assert (answer.session_id == NO_SESSION) is (epoch == FINAL)
    assert consumer.fetch(session_id, 1).error_code == ErrorCode.fetch_session_id_not_found
    assert consumer.fetch(other, 1) == (ErrorCode.none, other, [])
    assert consumer.fetch(other, FINAL, max_wait=LONG) == (ErrorCode.none, NO_SESSION, []), "as clients that close do"


def test_no_partitions_at_all(consumer: Consumer) -> None:
    answer = consumer.fetch(NO_SESSION, INITIAL, max_wait=LONG)
    assert (answer.error_code, answer.session_id > 0, answer.told) == (ErrorCode.none, True, [])
    assert consumer.fetch(answer.session_id, 1, max_wait=LONG) == (ErrorCode.none, NO_SESSION, [])
    assert consumer.fetch(answer.session_id, 2).error_code == ErrorCode.fetch_session_id_not_found


def test_a_fetch_waits_for_any_partition_of_its_session(topics: Topics, consumer: Consumer) -> None:
    first, second = topics.create(2)
    session_id = consumer.open({first: 0, second: 0})
    for epoch in range(1, 4):
        started = time.monotonic()
        consumer.send(session_id, epoch, {second: epoch - 1} if epoch > 1 else {}, max_wait=LONG)
        topics.append(second, b"%d" % epoch)
        assert consumer.receive().told == [(second, fields_of(12, epoch, b"%d" % epoch))]
        assert time.monotonic() - started < LONG.total_seconds() / 2
    started = time.monotonic()
    soon = datetime.timedelta(milliseconds=300)
    assert consumer.fetch(session_id, 4, {second: 3}, max_wait=soon) == (ErrorCode.none, session_id, [])
    assert 0.29 < time.monotonic() - started < LONG.total_seconds() / 2


def test_a_partition_that_does_not_exist_ends_no_wait(topics: Topics, consumer: Consumer) -> None:
    """Beside others: who fetches a topic that was deleted would ask over and over."""
    (first,) = topics.create(1)
    nobody = ("nobody", 0)

    def took_s(wanted: dict[Partition, int], wait: datetime.timedelta) -> float:
        started = time.monotonic()
        answer = consumer.fetch(NO_SESSION, FINAL, wanted, max_wait=wait)
        assert nobody in answer.partitions
        return time.monotonic() - started

    assert took_s({first: 0, nobody: 0}, datetime.timedelta(milliseconds=300)) > 0.29
    assert took_s({nobody: 0}, LONG) < LONG.total_seconds() / 2, "there is nothing to wait for"
    assert took_s({first: 1, nobody: 0}, LONG) < LONG.total_seconds() / 2, "an offset that is out of range is told"
    consumer.send(NO_SESSION, FINAL, {first: 0, nobody: 0}, max_wait=LONG)
    topics.append(first, b"a")
    started = time.monotonic()
    assert consumer.receive().values() == {first: [b"a"]}
    assert time.monotonic() - started < LONG.total_seconds() / 2


def test_a_session_belongs_to_no_connection(topics: Topics, consumer: Consumer, bootstrap: str) -> None:
    (first,) = topics.create(1)
    session_id = consumer.open({first: 0})
    topics.append(first, b"a")
    with ProtocolClient(bootstrap) as connection:
        other = Consumer(connection, 7)
        assert other.fetch(session_id, 1) == (ErrorCode.none, session_id, [(first, fields_of(7, 1, b"a"))])
    assert consumer.fetch(session_id, 1).error_code == ErrorCode.invalid_fetch_session_epoch
    assert consumer.fetch(session_id, 2).values() == {first: [b"a"]}


def test_a_fetch_that_another_one_of_its_session_overtakes(topics: Topics, consumer: Consumer, bootstrap: str) -> None:
    (first,) = topics.create(1)
    session_id = consumer.open({first: 0})
    with ProtocolClient(bootstrap) as connection:
        other = Consumer(connection)
        other.send(session_id, 1, {}, max_wait=LONG)
        until(lambda: consumer.fetch(session_id, 2).error_code, lambda code: code == ErrorCode.none)
        topics.append(first, b"a")
        assert other.receive() == (ErrorCode.invalid_fetch_session_epoch, session_id, [])
    assert consumer.fetch(session_id, 3).values() == {first: [b"a"]}, "nothing of it is lost"


def test_what_gave_records_is_read_last_the_next_time(topics: Topics, consumer: Consumer) -> None:
    found = topics.create(4)
    session_id = consumer.open(dict.fromkeys(found, 0))
    for partition in found:
        topics.append(partition, b"a")
        topics.append(partition, b"b")
    positions, seen = dict.fromkeys(found, 0), []
    changed: dict[Partition, int] = {}
    for epoch in range(1, 9):
        answer = consumer.fetch(session_id, epoch, changed, max_bytes=1)  # one batch of the first that has some
        ((partition, values),) = answer.values().items()
        positions[partition] += len(values)
        changed = {partition: positions[partition]}
        seen.append((partition, values))
    assert seen == [(partition, [value]) for value in (b"a", b"b") for partition in found]


def test_a_topic_that_is_deleted_and_made_anew(topics: Topics, consumer: Consumer) -> None:
    gone, stays = topics.create(2), topics.create(1)[0]
    name = gone[0][0]
    topics.append(gone[0], b"a", b"b")
    session_id = consumer.open({gone[0]: 2, gone[1]: 0, stays: 0})
    topics.delete(name)
    epochs = itertools.count(1)

    def codes() -> list[tuple[Partition, ErrorCode]]:
        answer = consumer.fetch(session_id, next(epochs))
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, session_id)
        return [(partition, fields["error_code"]) for partition, fields in answer.told]

    unknown = ErrorCode.unknown_topic_or_partition
    until(codes, lambda told: told == [(gone[0], unknown), (gone[1], unknown)])
    topics.append(stays, b"c")
    assert set(codes()) == {(stays, ErrorCode.none), (gone[0], unknown), (gone[1], unknown)}
    assert consumer.fetch(session_id, next(epochs), {stays: 1}).partitions == gone
    topics.create(2, name)
    until(codes, lambda told: told == [(gone[0], ErrorCode.offset_out_of_range)])
    topics.append(gone[0], b"d")
    topics.append(gone[1], b"e")
    answer = consumer.fetch(session_id, next(epochs), {gone[0]: 0})
    assert answer.values() == {gone[0]: [b"d"], gone[1]: [b"e"]}


def test_committed_records_alone(topics: Topics, consumer: Consumer) -> None:
    (first,) = topics.create(1)
    session_id = consumer.open({first: 0})
    topics.append(first, b"a")
    answer = consumer.fetch(session_id, 1, isolation_level=1)
    assert answer.told == [(first, fields_of(12, 1, b"a", aborted_transactions=()))]
    assert consumer.fetch(session_id, 2, leader_epoch=5).values() == {first: [b"a"]}
    answer = consumer.fetch(session_id, 3, {first: 1}, leader_epoch=2**31 - 1)
    assert answer.told == [(first, failed(12, ErrorCode.unknown_leader_epoch))]


@pytest.mark.parametrize("seed", range(5))
def test_a_session_and_whole_fetches_tell_the_same(topics: Topics, bootstrap: str, seed: int) -> None:
    """Whatever changes in between; the whole fetches are of another connection."""
    chance = random.Random(seed)
    found = topics.create(4) + topics.create(3)
    ends, starts = dict.fromkeys(found, 0), dict.fromkeys(found, 0)
    wanted = dict.fromkeys(chance.sample(found, 5), 0)
    known: dict[Partition, dict[str, Any]] = {}
    with ProtocolClient(bootstrap) as one, ProtocolClient(bootstrap) as two:
        session, whole = Consumer(one), Consumer(two)
        answer = session.fetch(NO_SESSION, INITIAL, wanted)
        session_id, known = answer.session_id, dict(answer.told)
        for epoch in range(1, 40):
            changed: dict[Partition, int] = {}
            forgotten: list[Partition] = []
            for _ in range(chance.randrange(4)):
                partition = chance.choice(found)
                match chance.choice(("append", "append", "trim", "seek", "forget")):
                    case "append":
                        topics.append(partition, b"x")
                        ends[partition] += 1
                    case "trim" if starts[partition] < ends[partition]:
                        starts[partition] += 1
                        topics.delete_before(partition, starts[partition])
                    case "seek":
                        wanted[partition] = changed[partition] = chance.randint(0, ends[partition] + 1)
                        forgotten = [name for name in forgotten if name != partition]
                    case "forget" if partition in wanted and len(wanted) > 1:
                        del wanted[partition]
                        changed.pop(partition, None)
                        forgotten.append(partition)
            answer = session.fetch(session_id, epoch, changed, *forgotten)
            assert (answer.error_code, answer.session_id) == (ErrorCode.none, session_id)
            expected = dict(whole.fetch(NO_SESSION, FINAL, wanted).told)
            for partition in forgotten:
                known.pop(partition, None)
            assert set(answer.partitions) == {
                partition
                for partition, fields in expected.items()
                if fields["records"] or fields["error_code"] != ErrorCode.none or known.get(partition) != fields
            }
            known |= dict(answer.told)
            assert known == expected
            # Partitions with records are told again, so only what has none is known to be the same without it.
            known = {partition: fields | {"records": []} for partition, fields in known.items()}


@pytest.fixture(params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def crowded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    settings = {"max.incremental.fetch.session.cache.slots": str(CACHE)}
    if request.param == "keylane":
        with BrokerProcess(tmp_path / "data", settings=settings) as process:
            yield process.bootstrap
        return
    if missing := peers.missing():
        pytest.skip(missing)
    with peers.ApacheKafka(settings) as kafka:
        yield kafka.bootstrap


def test_without_room_there_is_no_session(crowded: str) -> None:
    topics = Topics(crowded)
    consumer = Consumer(topics.client)
    first, second = topics.create(2)
    topics.append(first, b"a")
    sessions = [consumer.open({first: 0}) for _ in range(CACHE)]
    answer = consumer.fetch(NO_SESSION, INITIAL, {first: 0, second: 0})
    assert answer == (ErrorCode.none, NO_SESSION, [(first, fields_of(12, 1, b"a")), (second, fields_of(12, 0))])
    for session_id in sessions:
        assert consumer.fetch(session_id, 1, {first: 1}) == (ErrorCode.none, session_id, [])
    for session_id in sessions:
        assert consumer.fetch(session_id, FINAL).session_id == NO_SESSION
    assert len({consumer.open({first: 0}) for _ in range(CACHE)}) == CACHE
    topics.client.close()
