#!/usr/bin/env bash
# Python's consumers beside Apache Kafka 4.3.1: each has read and committed the 20 records of a topic, which is then deleted
# and made anew with 40 records. confluent-kafka 2.16.1 (classic protocol), kafka-python 3.0.12 and aiokafka 0.14.0 go on at
# offset 20 of the new topic: 20 records are never given out, no error comes, and the commit says 40. (confluent-kafka does
# so where it did not ask for metadata just between the two topics: of three rounds one has to show it.) Under KIP-848
# confluent-kafka gives out all 40: it goes on at 20 as well, until the group's coordinator assigns the new topic's id, and
# then begins again, so that the last 20 may come twice.
# Needs Java 17+ and Maven.
set -euo pipefail
folder=$(mktemp -d)
broker=
trap '[[ -z $broker ]] || { kill "$broker"; wait "$broker" || true; }; rm -r "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1 aiokafka==0.14.0 kafka-python==3.0.12
cat >pom.xml <<'END'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
END
mvn -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=jars >mvn.log 2>&1 || { cat mvn.log; exit 1; }
read -r port controller < <(python3 -c '
import socket
with socket.socket() as a, socket.socket() as b:
    a.bind(("127.0.0.1", 0)); b.bind(("127.0.0.1", 0))
    print(a.getsockname()[1], b.getsockname()[1])')
cat >server.properties <<END
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:$controller
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
log.dirs=$folder/data
END
java -cp 'jars/*' kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c server.properties >format.log 2>&1
java -Xmx512m -cp 'jars/*' kafka.Kafka server.properties >broker.log 2>&1 &
broker=$!
cat >read.py <<'END'
import asyncio, sys, time
import aiokafka, confluent_kafka, kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SERVER = f"127.0.0.1:{sys.argv[1]}"
OLD, NEW, QUIET_S = 20, 40, 10
admin = AdminClient({"bootstrap.servers": SERVER, "log_level": 0})


def make(name, count):
    for _ in range(300):
        try:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
            break
        except KafkaException:  # the broker starts, or the old topic is not gone yet
            time.sleep(0.2)
    producer = confluent_kafka.Producer({"bootstrap.servers": SERVER})
    for number in range(count):
        producer.produce(name, b"%d %d" % (count, number), partition=0)
    assert producer.flush(60) == 0


def anew(name):
    admin.delete_topics([name])[name].result(30)
    make(name, NEW)


def of_new(values):
    return [value for value in values if value.startswith(b"%d " % NEW)]


class Confluent:
    def __init__(self, name, protocol):
        options = {"bootstrap.servers": SERVER, "group.id": name, "auto.offset.reset": "earliest", "log_level": 0}
        self.consumer = confluent_kafka.Consumer(options | {"enable.auto.commit": False, "group.protocol": protocol})
        self.consumer.subscribe([name])
        self.errors = set()

    def read(self, quiet_s):
        found, until = [], time.monotonic() + quiet_s
        while time.monotonic() < until:
            message = self.consumer.poll(0.2)
            if message is not None and message.error():
                self.errors.add(message.error().name())
            elif message is not None:
                found.append(message.value())
                until = time.monotonic() + QUIET_S
        return found

    def commit(self, name):
        self.consumer.commit(asynchronous=False)
        return self.consumer.committed([TopicPartition(name, 0)], timeout=10)[0].offset

    def close(self):
        self.consumer.close()


class KafkaPython:
    def __init__(self, name):
        self.errors = set()
        self.consumer = kafka.KafkaConsumer(
            name, bootstrap_servers=SERVER, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
        )

    def read(self, quiet_s):
        found, until = [], time.monotonic() + quiet_s
        while time.monotonic() < until:
            for messages in self.consumer.poll(200).values():
                found += [message.value for message in messages]
                until = time.monotonic() + QUIET_S
        return found

    def commit(self, name):
        self.consumer.commit()
        return self.consumer.committed(kafka.TopicPartition(name, 0))

    def close(self):
        self.consumer.close()


class Aiokafka:
    def __init__(self, name):
        self.errors = set()
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.start(name))

    async def start(self, name):
        self.consumer = aiokafka.AIOKafkaConsumer(
            name, bootstrap_servers=SERVER, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await self.consumer.start()

    def read(self, quiet_s):
        return self.loop.run_until_complete(self.reading(quiet_s))

    async def reading(self, quiet_s):
        found, until = [], time.monotonic() + quiet_s
        while time.monotonic() < until:
            for messages in (await self.consumer.getmany(timeout_ms=200)).values():
                found += [message.value for message in messages]
                until = time.monotonic() + QUIET_S
        return found

    def commit(self, name):
        self.loop.run_until_complete(self.consumer.commit())
        return self.loop.run_until_complete(self.consumer.committed(aiokafka.TopicPartition(name, 0)))

    def close(self):
        self.loop.run_until_complete(self.consumer.stop())


KINDS = {
    "confluent-kafka, classic": lambda name: Confluent(name, "classic"),
    "confluent-kafka, KIP-848": lambda name: Confluent(name, "consumer"),
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}
print("confluent-kafka", confluent_kafka.__version__, "librdkafka", confluent_kafka.libversion()[0], end=", ")
print("aiokafka", aiokafka.__version__, "kafka-python", kafka.__version__, "Apache Kafka 4.3.1", flush=True)
seen = {}
for number, (kind, made) in enumerate(list(KINDS.items()) * 3):
    name = f"t{number}"
    make(name, OLD)
    reader = made(name)
    assert len(reader.read(60)) == OLD
    assert reader.commit(name) == OLD
    anew(name)
    new = of_new(reader.read(45))
    given, committed = len(set(new)), reader.commit(name)
    reader.close()
    print(f"{kind}: {given} of {NEW} new records, {len(new) - given} twice; committed {committed}, errors {reader.errors or 0}")
    seen[kind] = min(seen.get(kind, (NEW, NEW, "")), (given, committed, str(reader.errors or "")))
skipping = (NEW - OLD, NEW, "")
sys.exit(seen != dict.fromkeys(KINDS, skipping) | {"confluent-kafka, KIP-848": (NEW, NEW, "")})
END
venv/bin/python read.py "$port"
