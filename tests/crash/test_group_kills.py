"""SIGKILL of a broker under a consumer group of KIP-848 and under a share group, while members come and go.

No record is lost whose writing was acknowledged. A consumer group is delivered no record again that an acknowledged
commit covers: at most a batch for each member and kill. A share group is delivered again only what its members
released, or had not been told to be done when the broker died. `kit.group_kills` has the judge.

The kernel lives on, so this shows the order of answers and writes in the real process; lost power is simulated in
test_journal_states and test_share_group_crashes.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from keylane.broker.process import BrokerProcess
from kit.group_kills import DEADLINE_S, Event, Story, Verdict, Writer, judge_group, judge_share_group, read_log
from kit.protocol import ProtocolClient, part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPIC, GROUP = "flights", "workers"
PARTITIONS, MEMBERS = 4, 3
BATCH = 20
"""Records that a member has at most before it commits or says what became of them."""
EVENTS_BEFORE_A_KILL = 120
DELIVERIES = 5
"""`group.share.delivery.count.limit`."""
NONE = 0
ACCEPT, RELEASE = 1, 2
MS = datetime.timedelta(milliseconds=1)
SETTINGS = {
    "offsets.topic.segment.bytes": str(64 * 1024),  # so small that a broker writes snapshots all the time
    "group.consumer.heartbeat.interval.ms": "500",  # so long does librdkafka wait for its answer
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "60000",  # however slow this machine is, none ends
}
KILLS = [pytest.param(3, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.soak)]


def make_topic(bootstrap: str) -> uuid.UUID:
    with ProtocolClient(bootstrap) as client:
        wanted = part(
            "create_topics", 7, "CreatableTopic", name=TOPIC, num_partitions=PARTITIONS, replication_factor=1,
            assignments=(), configs=(),
        )  # fmt: skip
        answer = client.ask("create_topics", 7, topics=(wanted,), timeout=10_000 * MS, validate_only=False)
        topic_id: uuid.UUID = answer.topics[0].topic_id
        return topic_id


def told(record_property: Callable[[str, object], None], kills: int, story: Story, verdict: Verdict) -> None:
    """The figures of a run, and that nothing was found."""
    for name, value in (("kills", kills), ("deliveries", story.deliveries), ("again", verdict.again)):
        record_property(name, value)
    assert (verdict.lost, verdict.wrong) == ([], [])


# A consumer group


class Reader(threading.Thread):
    """A member of librdkafka's: it commits each batch, and takes no other before that was acknowledged."""

    def __init__(self, bootstrap: str, name: str, story: Story) -> None:
        super().__init__(name=name)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.losses = 0
        """How often it was told that it had been taken for dead."""
        self._story = story
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": GROUP, "client.id": name, "group.protocol": "consumer",
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
        })  # fmt: skip

    def run(self) -> None:
        try:
            self._consumer.subscribe([TOPIC], on_lost=self._on_lost)
            while not self.stop.is_set():
                messages = [one for one in self._consumer.consume(BATCH, 0.1) if one.error() is None]
                ends: dict[int, int] = {}
                places = []
                for message in messages:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    places.append((partition, offset))
                    ends[partition] = offset + 1
                self._story.tell("delivered", 0, self.name, places)
                self._commit(ends)
            self._consumer.close()
        except BaseException as error:
            self.error = error

    def _commit(self, ends: dict[int, int]) -> None:
        """Until it is acknowledged, or refused because the member has the partitions no more."""
        while ends:
            offsets = [TopicPartition(TOPIC, partition, end) for partition, end in ends.items()]
            try:
                for one in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
                    if one.error is None:
                        self._story.tell("committed", 0, self.name, [(one.partition, ends.pop(one.partition))])
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH):
                    return
            if self.stop.is_set():
                return

    def _on_lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.losses += 1


@pytest.mark.parametrize("kills", KILLS)
def test_a_consumer_group_under_kills(
    tmp_path: Path, kills: int, record_property: Callable[[str, object], None]
) -> None:
    story = Story()
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker, contextlib.ExitStack() as stack:
        make_topic(broker.bootstrap)
        writer = Writer(broker.bootstrap, TOPIC, PARTITIONS, story)
        readers: list[Reader] = []
        threads: list[Writer | Reader] = [writer]

        def end() -> None:
            for thread in threads:
                thread.stop.set()
            for thread in threads:
                thread.join(DEADLINE_S)

        def begin_reader(number: int) -> None:
            readers.append(Reader(broker.bootstrap, f"member-{number}", story))
            threads.append(readers[-1])
            readers[-1].start()

        stack.callback(end)
        writer.start()
        for number in range(MEMBERS):
            begin_reader(number)
        for number in range(kills):
            story.wait_for_more(EVENTS_BEFORE_A_KILL)
            broker.kill()
            gone = readers[number]  # it goes, and another one comes, while the broker is away
            gone.stop.set()
            begin_reader(MEMBERS + number)
            broker.start()
        story.wait_for_more(EVENTS_BEFORE_A_KILL)
        writer.stop.set()
        writer.join(DEADLINE_S)
        log = read_log(broker.bootstrap, TOPIC, PARTITIONS)
        story.wait_for_all("delivered", log)
        end()
        for thread in threads:
            assert not thread.is_alive(), thread.name
            assert thread.error is None, (thread.name, thread.error)
    verdict = judge_group(log, writer.acknowledged, story.events)
    told(record_property, kills, story, verdict)
    assert sum(reader.losses for reader in readers) == 0, "a member was taken for dead because the broker was"
    assert verdict.again <= kills * MEMBERS * BATCH


# A share group


class Worker(threading.Thread):
    """A member in one life of the broker, on a bare connection. It releases each tenth record that comes first, and
    accepts the others. All read all partitions, whatever they are to read; the next life's have their names."""

    def __init__(self, bootstrap: str, topic_id: uuid.UUID, name: str, life: int, story: Story) -> None:
        super().__init__(name=name)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._servers, self._topic_id, self._life, self._story = bootstrap, topic_id, life, story
        self._epoch = 0
        """Of its session."""

    def run(self) -> None:
        try:
            # The broker is killed.
            with contextlib.suppress(EOFError, OSError), ProtocolClient(self._servers) as client:
                while not self._is_member(client):
                    if self.stop.is_set():
                        return
                while not self.stop.is_set():
                    self._work(client)
        except BaseException as error:
            self.error = error

    def _is_member(self, client: ProtocolClient) -> bool:
        answer = client.ask(
            "share_group_heartbeat", 1, group_id=GROUP, member_id=self.name, member_epoch=0, rack_id=None,
            subscribed_topic_names=(TOPIC,),
        )  # fmt: skip
        return answer.assignment is not None

    def _work(self, client: ProtocolClient) -> None:
        partitions = tuple(
            part("share_fetch", 2, "FetchPartition", partition_index=one, acknowledgement_batches=())
            for one in range(PARTITIONS)
        )
        topic = part("share_fetch", 2, "FetchTopic", topic_id=self._topic_id, partitions=partitions)
        answer = client.ask(
            "share_fetch", 2, group_id=GROUP, member_id=self.name, topics=() if self._epoch else (topic,),
            share_session_epoch=self._epoch, max_wait=50 * MS, min_bytes=1, max_bytes=1_000_000, max_records=BATCH,
            batch_size=BATCH, share_acquire_mode=1, is_renew_ack=False, forgotten_topics_data=(),
        )  # fmt: skip
        assert answer.error_code == NONE, answer
        self._epoch += 1
        kinds: dict[int, dict[int, int]] = {}
        for topic in answer.responses:
            for row in topic.partitions:
                for run in row.acquired_records:
                    assert 1 <= run.delivery_count <= DELIVERIES
                    for offset in range(run.first_offset, run.last_offset + 1):
                        is_first = run.delivery_count == 1
                        kinds.setdefault(row.partition_index, {})[offset] = (
                            RELEASE if is_first and offset % 10 == 0 else ACCEPT
                        )
        if kinds:
            self._tell("delivered", kinds, (ACCEPT, RELEASE))
            self._say(client, kinds)

    def _say(self, client: ProtocolClient, kinds: dict[int, dict[int, int]]) -> None:
        self._tell("releasing", kinds, (RELEASE,))
        self._tell("accepting", kinds, (ACCEPT,))
        rows = tuple(
            part(
                "share_acknowledge", 2, "AcknowledgePartition", partition_index=partition,
                acknowledgement_batches=tuple(
                    part(
                        "share_acknowledge", 2, "AcknowledgementBatch", first_offset=offset, last_offset=offset,
                        acknowledge_types=(kind,),
                    )
                    for offset, kind in sorted(said.items())
                ),
            )
            for partition, said in kinds.items()
        )  # fmt: skip
        topic = part("share_acknowledge", 2, "AcknowledgeTopic", topic_id=self._topic_id, partitions=rows)
        answer = client.ask(
            "share_acknowledge", 2, group_id=GROUP, member_id=self.name, is_renew_ack=False,
            share_session_epoch=self._epoch, topics=(topic,),
        )  # fmt: skip
        assert answer.error_code == NONE, answer
        self._epoch += 1
        assert [one.error_code for one in answer.responses[0].partitions] == [NONE] * len(rows), answer
        self._tell("accepted", kinds, (ACCEPT,))

    def _tell(self, what: Any, kinds: dict[int, dict[int, int]], those: tuple[int, ...]) -> None:
        places = [(partition, one) for partition, said in kinds.items() for one, kind in said.items() if kind in those]
        self._story.tell(what, self._life, self.name, places)


def begin_at_the_beginning(bootstrap: str) -> None:
    config = part(
        "incremental_alter_configs", 1, "AlterableConfig", name="share.auto.offset.reset", config_operation=0,
        value="earliest",
    )  # fmt: skip
    resource = part(
        "incremental_alter_configs", 1, "AlterConfigsResource", resource_type=32, resource_name=GROUP, configs=(config,)
    )
    with ProtocolClient(bootstrap) as client:
        answer = client.ask("incremental_alter_configs", 1, resources=(resource,), validate_only=False)
        assert answer.responses[0].error_code == NONE


@pytest.mark.parametrize("kills", KILLS)
def test_a_share_group_under_kills(tmp_path: Path, kills: int, record_property: Callable[[str, object], None]) -> None:
    story, names = Story(), [str(uuid.uuid4()) for _ in range(MEMBERS)]
    chance = random.Random(kills)
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker, contextlib.ExitStack() as stack:
        topic_id = make_topic(broker.bootstrap)
        begin_at_the_beginning(broker.bootstrap)
        writer = Writer(broker.bootstrap, TOPIC, PARTITIONS, story)
        threads: list[Writer | Worker] = [writer]

        def end(those: list[Writer | Worker]) -> None:
            for thread in those:
                thread.stop.set()
            for thread in those:
                thread.join(DEADLINE_S)
                assert not thread.is_alive(), thread.name
                assert thread.error is None, (thread.name, thread.error)

        stack.callback(lambda: end(threads))
        writer.start()
        for life in range(kills + 1):
            threads[1:] = [Worker(broker.bootstrap, topic_id, name, life, story) for name in names]
            for worker in threads[1:]:
                worker.start()
            story.wait_for_more(EVENTS_BEFORE_A_KILL + chance.randrange(3 * BATCH))
            if life < kills:
                broker.kill()
                end(threads[1:])
                broker.start()
        end([writer])
        log = read_log(broker.bootstrap, TOPIC, PARTITIONS)
        story.wait_for_all("accepting", log)
    verdict = judge_share_group(log, writer.acknowledged, story.events)
    told(record_property, kills, story, verdict)
    released = sum(event.what == "releasing" for event in story.events)
    assert verdict.again <= released + kills * MEMBERS * BATCH


def test_the_judge_finds_what_is_wrong() -> None:
    log, a, b = {(0, 0): b"0", (0, 1): b"1"}, "a", "b"
    first, second = (0, 0), (0, 1)
    right = [Event("delivered", 0, a, first), Event("committed", 0, a, second), Event("delivered", 0, b, second)]
    assert judge_group(log, {b"0", b"1"}, right) == ([], [], 0)
    assert judge_group(log, {b"2"}, right).lost == [b"2"]
    assert judge_group(log, set(), right[:1]).lost == [second]
    late = judge_group(log, set(), [*right, Event("delivered", 0, b, first)])
    assert (late.wrong, late.again) == (["(0, 0) was delivered to b when 1 was committed"], 1)

    given = [Event("delivered", 0, a, first), Event("accepting", 0, a, first)]
    killed = Event("delivered", 1, b, first)
    assert judge_share_group({first: b"0"}, {b"0"}, [*given, killed]) == ([], [], 1)
    assert judge_share_group(log, set(), given).lost == [second]
    assert judge_share_group(log, set(), [*given, Event("accepted", 0, a, first), killed]).wrong
    assert judge_share_group(log, set(), [*given, killed._replace(life=0)]).wrong
    released = [given[0], Event("releasing", 0, a, first), killed._replace(life=0)]
    assert not judge_share_group(log, set(), released).wrong
