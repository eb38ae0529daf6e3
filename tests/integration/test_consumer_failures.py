"""Retries, dead letters, skips and halts on a real broker; what is wrong at the start; where partitions start."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from kafka import KafkaProducer

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.errors import UnreadableHeadersError
from keylane.kafka import exact
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.offsets import OffsetMap, encode
from keylane.records import MISSING_HEADERS
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = kl.Retries(max_attempts=3, delay_ms=5)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("failures") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


class Offset:
    """What another client commits."""

    leader_epoch = -1

    def __init__(self, stage: Stage, offset: int, metadata: str = "", partition: int = 0) -> None:
        self.name = (stage.topic, partition)
        self.offset = offset
        self.metadata = metadata


def commit(stage: Stage, *offsets: Offset) -> None:
    client = Consumer({"bootstrap.servers": stage.servers, "group.id": stage.group})
    assert all(one.error is None for one in exact.commit_now(client, offsets))
    client.close()


class Runs:
    """A handler that notes what it ran, and fails where it is told to."""

    def __init__(self, *failing: int, times: int = 1_000) -> None:
        self.ran: list[int] = []
        self._failing = dict.fromkeys(failing, times)
        self._lock = threading.Lock()

    def __call__(self, record: kl.Record) -> None:
        with self._lock:
            self.ran.append(record.offset)
            if self._failing.get(record.offset, 0) > 0:
                self._failing[record.offset] -= 1
                raise ValueError(f"bad record {record.offset}")


def ten(stage: Stage) -> None:
    stage.create(1)
    stage.fill((b"%d" % (number % 3), 0) for number in range(10))


# --- after an attempt failed ---


def test_a_failed_attempt_is_repeated_and_its_key_waits(stage: Stage) -> None:
    ten(stage)
    handler = Runs(3, times=2)
    snapshot = stage.run(handler, retries=FAST)
    assert [offset for offset in handler.ran if offset % 3 == 0] == [0, 3, 3, 3, 6, 9]
    assert (snapshot.processed, snapshot.failed, snapshot.retried) == (10, 2, 2)
    assert stage.all_is_committed()


def test_a_dead_letter_is_the_record_as_it_was_and_says_what_failed(stage: Stage) -> None:
    ten(stage)
    stage.create(2, "dead-" + stage.topic)
    before_ms = int(time.time() * 1000) - 60_000
    snapshot = stage.run(Runs(4), retries=FAST, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    [letter] = stage.read("dead-" + stage.topic)
    assert (letter.key, letter.value) == (b"1", b"4")
    said = dict(letter.headers)
    assert int(said.pop("keylane.timestamp") or b"") > before_ms
    assert said == {
        "keylane.topic": stage.topic.encode(),
        "keylane.partition": b"0",
        "keylane.offset": b"4",
        "keylane.error.class": b"ValueError",
        "keylane.error.text": b"bad record 4",
        "keylane.attempts": b"3",
    }
    assert (snapshot.processed, snapshot.dead_lettered) == (9, 1)
    assert stage.all_is_committed()


def test_a_dead_letter_that_cannot_be_produced_halts_with_both_errors(stage: Stage) -> None:
    ten(stage)
    options: dict[str, Any] = {
        "kafka": stage.kafka | {"allow.auto.create.topics": True},  # or it would be missed at the start
        "on_exhausted": kl.DeadLetter("no topic"),
        "retries": kl.Retries(2, delay_ms=5),
    }
    with pytest.raises(kl.HandlerError, match=r"@4: ValueError: bad record 4; .*dead letter.*'no topic'.*_TOPIC"):
        stage.run(Runs(4), **options)
    assert not stage.committed()[stage.topic, 0].is_complete(4)


def test_skip_counts_and_goes_on(stage: Stage) -> None:
    ten(stage)
    snapshot = stage.run(Runs(4, 5), retries=FAST, on_exhausted=kl.Skip())
    assert (snapshot.processed, snapshot.skipped, snapshot.failed) == (8, 2, 6)
    assert stage.all_is_committed()


def test_halt_names_the_record_and_a_restart_goes_on_there(stage: Stage) -> None:
    ten(stage)
    first = Runs(4)
    with pytest.raises(kl.HandlerError) as caught:
        stage.run(first, retries=FAST, ordering="partition")
    assert str(caught.value).startswith(f"{stage.topic}-0@4: ValueError: bad record 4; failed 3 attempts; ")
    assert isinstance(caught.value.__cause__, ValueError)
    assert stage.committed()[stage.topic, 0] == OffsetMap(4)
    second = Runs()
    stage.run(second, ordering="partition")
    assert second.ran == list(range(4, 10))


def test_fatal_is_not_repeated(stage: Stage) -> None:
    ten(stage)

    def handler(record: kl.Record) -> None:
        if record.offset == 2:
            raise kl.Fatal("no use")

    snapshot = stage.run(handler, on_exhausted=kl.Skip())
    assert (snapshot.failed, snapshot.retried, snapshot.skipped) == (1, 0, 1)


def test_a_wrong_return_value_names_the_record_and_what_was_returned(stage: Stage) -> None:
    ten(stage)
    with pytest.raises(
        kl.HandlerError, match=r"-0@\d+: HandlerError: the handler returned a value of type int; return"
    ):
        stage.run(lambda record: record.offset)


def test_an_output_that_cannot_be_produced_is_a_failed_attempt(stage: Stage) -> None:
    ten(stage)

    def handler(record: kl.Record) -> Any:
        return kl.Output("out", value=bytes(2_000_000)) if record.offset == 1 else None

    snapshot = stage.run(handler, retries=FAST, on_exhausted=kl.Skip())
    assert (snapshot.skipped, snapshot.failed, snapshot.processed) == (1, 3, 9)


def test_an_output_of_another_type_is_not_tried_again(stage: Stage) -> None:
    ten(stage)

    def handler(record: kl.Record) -> Any:
        return kl.Output("out", value={}) if record.offset == 1 else None  # type: ignore[arg-type]

    with pytest.raises(kl.HandlerError, match=r"-0@1: OutputTypeError: Output\.value for topic 'out' is .* dict"):
        stage.run(handler, retries=kl.Retries(max_attempts=100, delay_ms=60_000))


def test_an_output_does_not_make_its_topic(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The broker would make it (`auto.create.topics.enable`), with one partition and under whatever name."""
    ten(stage)
    out = f"misspelled-{stage.topic}"
    with pytest.raises(kl.HandlerError) as raised:
        stage.run(lambda _: kl.Output(out, value=b"x"), retries=kl.Retries(max_attempts=1))
    assert f"topic {out!r}, which an output is for, does not exist (" in str(raised.value)
    assert f"keylane topics create {out}" in str(raised.value)
    assert out not in stage.admin.topics()
    caplog.clear()
    with_topics = stage.kafka | {"allow.auto.create.topics": "true"}
    stage.run(lambda _: kl.Output(out, value=b"x"), kafka=with_topics)
    assert len(stage.read(out)) == 10


# --- at the start ---


def test_an_unreachable_broker_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.kafka.logs.FIRST_ANSWER_S", 1.0)
    kafka = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    before = set(threading.enumerate())
    with (
        kl.ParallelConsumer(kl.Pipeline(kafka=kafka, topics=["t"], handler=Runs())) as consumer,
        pytest.raises(kl.BrokerUnavailableError, match=r"no Kafka broker answered at '127\.0\.0\.1:1' .* check"),
    ):
        consumer.run()
    assert set(threading.enumerate()) == before


def test_a_topic_that_does_not_exist_is_named(stage: Stage) -> None:
    with pytest.raises(kl.UsageError, match=f"topic '{stage.topic}' does not exist at {stage.servers}.*: create it"):
        stage.run(Runs())


def test_settings_that_librdkafka_refuses_are_told(stage: Stage) -> None:
    with pytest.raises(kl.UsageError, match=r"librdkafka refuses these consumer settings.*no\.such\.setting"):
        stage.run(Runs(), kafka=stage.kafka | {"no.such.setting": 1})


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ("first", "ending_offsets='first': give"),
        ({("other", 0): 1}, "topic 'other' is not among the pipeline's topics"),
        ({("$", 0): -1}, "=-1: give an offset of at least 0"),
        ({("$", 7): 1}, "has no partition 7; it has 1"),
    ],
)
def test_ending_offsets_that_cannot_be_reached_are_refused(stage: Stage, ending: Any, says: str) -> None:
    ten(stage)
    if isinstance(ending, dict):
        ending = {(topic.replace("$", stage.topic), partition): end for (topic, partition), end in ending.items()}
    with pytest.raises(kl.UsageError, match=says):
        kl.ParallelConsumer(stage.pipeline(Runs()), ending_offsets=ending).run()


def test_a_consumer_runs_once(stage: Stage) -> None:
    ten(stage)
    with kl.ParallelConsumer(stage.pipeline(Runs()), ending_offsets="latest") as consumer:
        consumer.run()
        with pytest.raises(kl.UsageError, match="has run already"):
            consumer.run()


def test_a_consumer_that_was_stopped_or_closed_before_it_ran(stage: Stage) -> None:
    ten(stage)
    handler = Runs()
    with kl.ParallelConsumer(stage.pipeline(handler)) as consumer:
        consumer.stop()
        consumer.run()
    consumer.close()
    assert handler.ran == []
    with pytest.raises(kl.UsageError, match="has run already"):
        consumer.run()


# --- where partitions start ---


def test_the_start_of_a_partition_without_a_commit_is_committed_before_anything_runs(stage: Stage) -> None:
    ten(stage)
    seen = []

    def handler(record: kl.Record) -> None:
        seen.append(stage.committed()[stage.topic, 0].base)

    stage.run(handler, max_concurrency=1, offset_reset="earliest", commit=kl.Commit(interval_ms=60_000))
    assert seen[0] == 0


def test_latest_starts_at_the_end_and_stays_there_over_a_restart(stage: Stage) -> None:
    ten(stage)
    assert stage.run(Runs(), offset_reset="latest").processed == 0
    assert stage.committed()[stage.topic, 0] == OffsetMap(10)
    stage.fill([(b"new", 0)])
    handler = Runs()
    stage.run(handler, offset_reset="latest")
    assert handler.ran == [10]


def test_without_a_commit_error_is_an_error(stage: Stage) -> None:
    ten(stage)
    with pytest.raises(kl.PeerError, match=f"group '{stage.group}' has no committed offset for {stage.topic}-0"):
        stage.run(Runs(), offset_reset="error")


def test_a_committed_map_is_taken_up(stage: Stage) -> None:
    ten(stage)
    commit(stage, Offset(stage, 2, encode(OffsetMap(2, [2, 5, 6], 8))))
    handler = Runs()
    snapshot = stage.run(handler)
    assert sorted(handler.ran) == [2, 5, 6, 9]
    assert snapshot.already_complete == 4


def test_metadata_that_is_no_map_is_logged_and_its_offset_counts(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    ten(stage)
    commit(stage, Offset(stage, 7, "somebody else's"))
    handler = Runs()
    with caplog.at_level(logging.WARNING, "keylane"):
        stage.run(handler)
    assert sorted(handler.ran) == [7, 8, 9]
    assert f"group '{stage.group}', {stage.topic}-0: starting from offset 7 without its map" in caplog.text


def test_a_commit_beyond_the_log_is_an_error_with_both_figures(stage: Stage) -> None:
    ten(stage)
    commit(stage, Offset(stage, 999))
    with pytest.raises(kl.PeerError, match=f"has committed 999 for {stage.topic}-0, beyond the end of its log at 10"):
        stage.run(Runs())


# --- while it runs ---


def test_a_broker_that_takes_less_metadata_is_learned(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("small") / "data"
    with BrokerProcess(folder, settings={"offset.metadata.max.bytes": "40"}) as small:
        here = Stage(small.bootstrap, "small")
        here.create(1)
        here.fill((b"%d" % number, 0) for number in range(900))
        gate = threading.Event()
        held = random.Random(3).sample(range(400), 60)  # at random: what is regular compresses to nothing

        def handler(record: kl.Record) -> None:
            if record.offset in held:
                gate.wait(30)

        pipeline = here.pipeline(handler, workers=kl.Threads(100), commit=kl.Commit(interval_ms=100))
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            thread = threading.Thread(target=consumer.run)
            thread.start()
            until(lambda: consumer.snapshot().commits_without_map > 0, "a commit without its map")
            gate.set()
            thread.join(60)
        assert consumer.snapshot().processed == 900
        assert here.all_is_committed()


def test_stop_leaves_the_group_at_once(stage: Stage) -> None:
    ten(stage)
    with kl.ParallelConsumer(stage.pipeline(Runs())) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        until(lambda: consumer.snapshot().processed == 10, "all ran")
        assert len(stage.admin.describe_group(stage.group).members) == 1
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert stage.admin.describe_group(stage.group).members == ()
    assert stage.all_is_committed()


@pytest.mark.soak
def test_a_handler_that_outlives_poll_intervals_costs_no_membership(stage: Stage) -> None:
    """Kafka's own consumer loses its partitions when a record takes longer than max.poll.interval.ms."""
    ten(stage)
    gate = threading.Event()
    kafka = stage.kafka | {"max.poll.interval.ms": 6_000, "session.timeout.ms": 6_000}
    with kl.ParallelConsumer(
        stage.pipeline(lambda _: gate.wait(60) and None, kafka=kafka), ending_offsets="latest"
    ) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        until(lambda: consumer.snapshot().in_flight == 3, "one of each key is in its handler")
        waited = time.monotonic() + 7
        until(lambda: time.monotonic() > waited or not consumer.snapshot().partitions, "7 s or a loss")
        assert len(consumer.snapshot().partitions) == 1
        gate.set()
        thread.join(30)
    assert consumer.snapshot().processed == 10


@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
def test_a_header_name_that_is_no_utf_8_is_its_records_failure(stage: Stage, workers: Any) -> None:
    """Kafka takes any bytes for a name; the client refuses them once, and must not be asked again."""
    stage.create(1)
    append(stage, [((b"ok", b"\xc3\x28"),), ((b"tra\xff\xfece", b"v"),), ()])
    asked = []

    def handler(record: kl.Record) -> None:
        for _ in range(2):
            try:
                assert isinstance(record.headers, list)
            except UnreadableHeadersError:
                asked.append(record.offset)
        assert record.headers is not None

    options: dict[str, Any] = {
        "workers": workers,
        "retries": FAST,
        "on_exhausted": kl.DeadLetter(f"{stage.topic}.dead"),
    }
    dead = f"{stage.topic}.dead"
    Admin({"bootstrap.servers": stage.servers}).create_topics({dead: 1})
    snapshot = stage.run(handler, **options)
    assert (snapshot.processed, snapshot.dead_lettered) == (2, 1)
    assert asked == ([] if workers else [1] * 6), "the same refusal, whenever it is asked"
    [letter] = next(iter(read_to_end(stage.servers, dead)))
    said = dict(letter.headers)
    assert said["keylane.offset"] == b"1"
    assert b"no UTF-8" in (said[MISSING_HEADERS] or b"")
    assert said["keylane.attempts"] == b"3"


def write(stage: Stage, values: list[bytes]) -> None:
    with BulkProducer(stage.servers) as producer:
        for value in values:
            producer.produce(kl.Output(stage.topic, value=value))


def append(stage: Stage, headers: list[tuple[tuple[bytes, bytes | None], ...]]) -> None:
    """A record for each of these, by the protocol: the client takes no such names."""
    producer = KafkaProducer(bootstrap_servers=stage.servers)
    for some in headers:
        producer.send(stage.topic, b"v", headers=[(RawName(name), value) for name, value in some]).get(30)
    producer.close()


class RawName(str):
    """A name that is sent as these bytes."""

    def __new__(cls, name: bytes) -> RawName:
        return super().__new__(cls, name.decode("latin-1"))

    def encode(self, *_: object) -> bytes:
        return super().encode("latin-1")


def test_a_letter_fits_while_its_record_and_its_origin_do(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.create(1)
    dead = f"{stage.topic}.dead"
    Admin({"bootstrap.servers": stage.servers}).create_topics({dead: 1}, config={"max.message.bytes": "2000"})
    write(stage, [b"x" * 1_700, b"y" * 1_000])

    def handler(record: kl.Record) -> None:
        raise ValueError("€" * 4_000)

    with caplog.at_level(logging.WARNING, "keylane.consumer"):
        snapshot = stage.run(handler, retries=FAST, on_exhausted=kl.DeadLetter(dead))
    assert (snapshot.dead_lettered, snapshot.retried) == (2, 4), "a letter that is shortened is no other attempt"
    letters = {record.raw_value: dict(record.headers) for batch in read_to_end(stage.servers, dead) for record in batch}
    assert letters[b"y" * 1_000]["keylane.error.text"] == "€".encode() * 33
    assert "keylane.error.text" not in letters[b"x" * 1_700]
    assert letters[b"x" * 1_700]["keylane.offset"] == b"0"
    assert sum("says less of its error" in one.message for one in caplog.records) == 3


def test_what_is_too_large_is_told_with_topic_limit_and_size(stage: Stage) -> None:
    stage.create(1)
    dead = f"{stage.topic}.dead"
    Admin({"bootstrap.servers": stage.servers}).create_topics({dead: 1}, config={"max.message.bytes": "2000"})
    write(stage, [b"x" * 3_000])

    def handler(record: kl.Record) -> None:
        raise ValueError("bad")

    with pytest.raises(kl.HandlerError, match=rf"{dead}': .* 3,\d\d\d bytes are too large .* takes 2,000"):
        stage.run(handler, retries=FAST, on_exhausted=kl.DeadLetter(dead))


def test_the_broker_judges_how_large_an_output_may_be(stage: Stage) -> None:
    """librdkafka's own limit is lower than the brokers'."""
    stage.create(1)
    out = f"{stage.topic}.out"
    Admin({"bootstrap.servers": stage.servers}).create_topics({out: 1})
    write(stage, [b"x"])
    assert stage.run(lambda _: kl.Output(out, value=b"y" * 1_040_000)).processed == 1


def exits(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


class Exits(kl.RebalanceListener):
    def on_assigned(self, partitions: Any) -> None:
        exits()


BESIDE: dict[str, dict[str, Any]] = {
    "on_commit": {"on_commit": exits},
    "on_committed": {"on_committed": exits},
    "rebalance_listener.on_assigned": {"rebalance_listener": Exits()},
    "Retries.delay_ms": {"handler": exits, "retries": kl.Retries(delay_ms=exits)},
    "Breaker.target": {"handler": exits, "breaker": kl.Breaker(target=exits)},
    "Commit.metadata": {"commit": kl.Commit(metadata=exits), "ordering": "partition"},
    "start_offsets": {"commit": kl.External(start_offsets=exits)},
    "on_foreign_metadata": {"commit": kl.Commit(on_foreign_metadata=exits)},
}


@pytest.mark.parametrize("name", BESIDE)
def test_user_code_beside_the_handler_ends_no_run_without_its_name(stage: Stage, name: str) -> None:
    """Not even by what ends a thread in silence."""
    stage.create(1)
    write(stage, [b"x"])
    if name == "on_foreign_metadata":
        commit(stage, Offset(stage, 0, "somebody else's"))
    with pytest.raises(kl.HandlerError, match=rf"{name}.* raised SystemExit"):
        stage.run(**({"handler": lambda _: None} | BESIDE[name]))
