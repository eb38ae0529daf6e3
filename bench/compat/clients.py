"""The three Python clients through their public API: the same checks for each."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # exported untyped
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType as PythonResourceType
from kafka.admin import NewTopic as PythonTopic

from compat.results import PAUSE_S, Outcome, check, until

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 30
COUNT = 200
NUMBERS = itertools.count()


def fresh(kind: str) -> str:
    return f"{kind}-{next(NUMBERS)}"


class Confluent:
    """confluent-kafka (librdkafka)."""

    def __init__(self, bootstrap: str) -> None:
        self._servers: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._servers)

    def create(self) -> str:
        topic = fresh("confluent")
        self._admin.create_topics([NewTopic(topic, 2)])[topic].result(TIMEOUT_S)
        return topic

    def produce(self, topic: str, **settings: Any) -> None:
        producer = Producer(self._servers | {"acks": "all"} | settings)
        for number in range(COUNT):
            producer.produce(topic, b"%d" % number, key=b"k", headers=[("h", b"v")], partition=number % 2)
        assert producer.flush(TIMEOUT_S) == 0

    def read(self, topic: str, **settings: Any) -> list[bytes]:
        found = []
        with closing(
            Consumer(self._servers | {"group.id": "reader", "enable.partition.eof": True} | settings)
        ) as reader:
            reader.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in (0, 1)])
            ends = 0
            while ends < 2:
                message = reader.poll(TIMEOUT_S)
                assert message is not None, "nothing came"
                if message.error():
                    ends += 1
                else:
                    found.append(message.value() or b"")
        return sorted(found, key=int)

    def every_codec(self) -> None:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            topic = self.create()
            self.produce(topic, **{"compression.codec": codec})
            assert self.read(topic) == [b"%d" % each for each in range(COUNT)], codec

    def idempotent_producer(self) -> None:
        topic = self.create()
        self.produce(topic, **{"enable.idempotence": True})
        assert len(self.read(topic)) == COUNT

    def group_goes_on_where_it_committed(self) -> None:
        topic, group = self.create(), fresh("group")
        self.produce(topic)
        seen: list[bytes] = []
        for share in (COUNT // 2, COUNT):
            settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
            with closing(Consumer(self._servers | settings)) as consumer:
                consumer.subscribe([topic])
                while len(seen) < share:
                    for message in consumer.consume(min(20, share - len(seen)), TIMEOUT_S):
                        assert message.error() is None
                        seen.append(message.value() or b"")
                consumer.commit(asynchronous=False)
        assert sorted(seen, key=int) == [b"%d" % each for each in range(COUNT)]

    def transactions(self) -> None:
        topic = self.create()
        producer = Producer(self._servers | {"transactional.id": fresh("tx")})
        producer.init_transactions(TIMEOUT_S)
        for number, commits in enumerate((True, False, True)):
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number, partition=0)
            if commits:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
        assert self.read(topic, **{"isolation.level": "read_committed"}) == [b"0", b"2"]

    def offsets_by_time(self) -> None:
        topic = self.create()
        producer = Producer(self._servers)
        for number in range(10):
            producer.produce(topic, b"v", partition=0, timestamp=1_000_000 + number)
        producer.flush(TIMEOUT_S)
        with closing(Consumer(self._servers | {"group.id": "times"})) as consumer:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1_000_004)], TIMEOUT_S)
        assert found.offset == 4, found.offset

    def configs(self) -> None:
        topic = self.create()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entry = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
        found = self._admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        assert found["retention.ms"].value == "12345"
        assert not found["retention.ms"].is_default

    def records_are_deleted(self) -> None:
        topic = self.create()
        self.produce(topic)
        where = TopicPartition(topic, 0, 40)
        assert self._admin.delete_records([where])[where].result(TIMEOUT_S).low_watermark == 40
        assert len(self.read(topic)) == COUNT - 40

    def topics_are_deleted(self) -> None:
        topic = self.create()
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        until(lambda: topic not in self._admin.list_topics(timeout=TIMEOUT_S).topics, "it is gone")


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        self._servers = bootstrap

    def create(self) -> str:
        topic = fresh("python")
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self._servers)) as admin:
            admin.create_topics([PythonTopic(topic, 2, 1)])
        return topic

    def produce(self, topic: str, **settings: Any) -> None:
        with closing(kafka.KafkaProducer(bootstrap_servers=self._servers, acks="all", **settings)) as producer:
            for number in range(COUNT):
                producer.send(topic, b"%d" % number, key=b"k", headers=[("h", b"v")], partition=number % 2)
            producer.flush(TIMEOUT_S)

    def read(self, topic: str, **settings: Any) -> list[bytes]:
        found: list[bytes] = []
        with closing(kafka.KafkaConsumer(bootstrap_servers=self._servers, **settings)) as consumer:
            partitions = [kafka.TopicPartition(topic, each) for each in (0, 1)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)

            def read_on() -> bool:
                for records in consumer.poll(200).values():
                    found.extend(record.value for record in records)
                return all(consumer.position(each) >= ends[each] for each in partitions)

            until(read_on, "the end of the topic")
        return sorted(found, key=int)

    def every_codec(self) -> None:
        for codec in (None, "gzip"):  # the others need further libraries
            topic = self.create()
            self.produce(topic, compression_type=codec)
            assert self.read(topic) == [b"%d" % each for each in range(COUNT)], codec

    def idempotent_producer(self) -> None:
        topic = self.create()
        self.produce(topic, enable_idempotence=True)
        assert len(self.read(topic)) == COUNT

    def group_goes_on_where_it_committed(self) -> None:
        topic, group = self.create(), fresh("group")
        self.produce(topic)
        seen: list[bytes] = []
        for share in (COUNT // 2, COUNT):
            consumer = kafka.KafkaConsumer(
                topic,
                bootstrap_servers=self._servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_records=20,
            )
            with closing(consumer):

                def read_on(consumer: Any = consumer, share: int = share) -> bool:
                    for records in consumer.poll(200).values():
                        seen.extend(record.value for record in records)
                    return len(seen) >= share

                until(read_on, "the group's records")
                consumer.commit()
        assert sorted(seen, key=int) == [b"%d" % each for each in range(COUNT)]

    def transactions(self) -> None:
        topic = self.create()
        with closing(kafka.KafkaProducer(bootstrap_servers=self._servers, transactional_id=fresh("tx"))) as producer:
            producer.init_transactions()
            for number, commits in enumerate((True, False, True)):
                producer.begin_transaction()
                producer.send(topic, b"%d" % number, partition=0).get(TIMEOUT_S)
                if commits:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        assert self.read(topic, isolation_level="read_committed") == [b"0", b"2"]

    def offsets_by_time(self) -> None:
        topic = self.create()
        with closing(kafka.KafkaProducer(bootstrap_servers=self._servers)) as producer:
            for number in range(10):
                producer.send(topic, b"v", partition=0, timestamp_ms=1_000_000 + number)
            producer.flush(TIMEOUT_S)
        with closing(kafka.KafkaConsumer(bootstrap_servers=self._servers)) as consumer:
            partition = kafka.TopicPartition(topic, 0)
            assert consumer.offsets_for_times({partition: 1_000_004})[partition].offset == 4

    def configs(self) -> None:
        topic = self.create()
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self._servers)) as admin:
            admin.alter_configs([PythonResource(PythonResourceType.TOPIC, topic, configs={"retention.ms": "12345"})])
            found = str(admin.describe_configs([PythonResource(PythonResourceType.TOPIC, topic)]))
        assert "12345" in found, found[:200]

    def records_are_deleted(self) -> None:
        topic = self.create()
        self.produce(topic)
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self._servers)) as admin:
            admin.delete_records({kafka.TopicPartition(topic, 0): 40})
        assert len(self.read(topic)) == COUNT - 40

    def topics_are_deleted(self) -> None:
        topic = self.create()
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self._servers)) as admin:
            admin.delete_topics([topic])
            until(lambda: topic not in str(admin.list_topics()), "it is gone")


class Aiokafka:
    """aiokafka."""

    def __init__(self, bootstrap: str) -> None:
        self._servers = bootstrap

    async def _create(self) -> str:
        topic = fresh("aiokafka")
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        await admin.create_topics([AioTopic(topic, 2, 1)])
        await admin.close()
        return topic

    async def _produce(self, topic: str, **settings: Any) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks="all", **settings)
        await producer.start()
        for number in range(COUNT):
            await producer.send(topic, b"%d" % number, key=b"k", headers=[("h", b"v")], partition=number % 2)
        await producer.stop()

    async def _read(self, topic: str, **settings: Any) -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._servers, **settings)
        await consumer.start()
        partitions = [AioPartition(topic, each) for each in (0, 1)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        found: list[bytes] = []
        while [await consumer.position(each) for each in partitions] != [ends[each] for each in partitions]:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [record.value for record in records]
        await consumer.stop()
        return sorted(found, key=int)

    def _run(self, work: Any) -> None:
        asyncio.run(asyncio.wait_for(work, TIMEOUT_S * 2))

    def every_codec(self) -> None:
        async def work() -> None:
            for codec in (None, "gzip"):
                topic = await self._create()
                await self._produce(topic, compression_type=codec)
                assert await self._read(topic) == [b"%d" % each for each in range(COUNT)], codec

        self._run(work())

    def idempotent_producer(self) -> None:
        async def work() -> None:
            topic = await self._create()
            await self._produce(topic, enable_idempotence=True)
            assert len(await self._read(topic)) == COUNT

        self._run(work())

    def group_goes_on_where_it_committed(self) -> None:
        async def work() -> None:
            topic, group = await self._create(), fresh("group")
            await self._produce(topic)
            seen: list[bytes] = []
            for share in (COUNT // 2, COUNT):
                consumer = AIOKafkaConsumer(
                    topic,
                    bootstrap_servers=self._servers,
                    group_id=group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                )
                await consumer.start()
                while len(seen) < share:
                    for records in (await consumer.getmany(timeout_ms=200, max_records=20)).values():
                        seen += [record.value for record in records]
                await consumer.commit()
                await consumer.stop()
            assert sorted(seen, key=int) == [b"%d" % each for each in range(COUNT)]

        self._run(work())

    def transactions(self) -> None:
        async def work() -> None:
            topic = await self._create()
            producer = AIOKafkaProducer(bootstrap_servers=self._servers, transactional_id=fresh("tx"))
            await producer.start()
            for number, commits in enumerate((True, False, True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
                await (producer.commit_transaction() if commits else producer.abort_transaction())
            await producer.stop()
            assert await self._read(topic, isolation_level="read_committed") == [b"0", b"2"]

        self._run(work())

    def offsets_by_time(self) -> None:
        async def work() -> None:
            topic = await self._create()
            producer = AIOKafkaProducer(bootstrap_servers=self._servers)
            await producer.start()
            for number in range(10):
                await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=1_000_000 + number)
            await producer.stop()
            consumer = AIOKafkaConsumer(bootstrap_servers=self._servers)
            await consumer.start()
            partition = AioPartition(topic, 0)
            found = await consumer.offsets_for_times({partition: 1_000_004})
            await consumer.stop()
            assert found[partition].offset == 4

        self._run(work())

    def configs(self) -> None:
        async def work() -> None:
            topic = await self._create()
            admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
            await admin.start()
            change = AioResource(AioResourceType.TOPIC, topic, configs={"retention.ms": "12345"})
            await admin.alter_configs([change])
            found = str(await admin.describe_configs([AioResource(AioResourceType.TOPIC, topic)]))
            await admin.close()
            assert "12345" in found, found[:200]

        self._run(work())

    def records_are_deleted(self) -> None:
        async def work() -> None:
            topic = await self._create()
            await self._produce(topic)
            admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
            await admin.start()
            await admin.delete_records({AioPartition(topic, 0): RecordsToDelete(before_offset=40)})
            await admin.close()
            assert len(await self._read(topic)) == COUNT - 40

        self._run(work())

    def topics_are_deleted(self) -> None:
        async def work() -> None:
            topic = await self._create()
            admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
            await admin.start()
            await admin.delete_topics([topic])
            while topic in await admin.list_topics():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(PAUSE_S)
            await admin.close()

        self._run(work())


def suite_of(kind: Callable[[str], Any]) -> Callable[[str, str], list[Outcome]]:
    """All public methods of a client's class, as tests, but for those that others use."""
    used = {"create", "produce", "read"}

    def run(bootstrap: str, _folder: str) -> list[Outcome]:
        client = kind(bootstrap)
        names = [name for name in vars(kind) if not name.startswith("_") and name not in used]
        return [check(name.replace("_", " "), getattr(client, name)) for name in names]

    return run
