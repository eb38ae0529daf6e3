#!/usr/bin/env bash
# confluent-kafka 2.16.1 beside Apache Kafka 4.3.1: an AdminClient that has asked for a partition's offsets asks with the
# leader epoch that it knew then. After a restart of the broker, which raises the epoch, list_offsets() fails with
# FENCED_LEADER_EPOCH each time, for as long as was watched. A new client gets its answer meanwhile, and so does the old
# one after list_topics().
# Needs Java 17+ and Maven.
set -euo pipefail
folder=$(mktemp -d)
broker=
trap '[[ -z $broker ]] || { kill "$broker"; wait "$broker" || true; }; rm -r "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
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
log.dirs=$folder/data
END
java -cp 'jars/*' kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c server.properties >format.log 2>&1
start() { java -Xmx512m -cp 'jars/*' kafka.Kafka server.properties >broker.log 2>&1 & broker=$!; }
start
cat >ask.py <<'END'
import sys, time
import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

CONF, PLACE = {"bootstrap.servers": f"127.0.0.1:{sys.argv[1]}", "log_level": 0}, TopicPartition("t", 0)


def end(admin):
    try:
        return admin.list_offsets({PLACE: OffsetSpec.latest()}, request_timeout=10)[PLACE].result(15).offset
    except KafkaException as raised:
        return raised.args[0].name()


def until_it_answers():
    for _ in range(120):
        try:
            return AdminClient(CONF).list_topics(timeout=1)
        except KafkaException:
            pass
    sys.exit("the broker does not answer")


print("confluent-kafka", confluent_kafka.__version__, "librdkafka", confluent_kafka.libversion()[0], "Apache Kafka 4.3.1")
until_it_answers()
old = AdminClient(CONF)
old.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
while (found := end(old)) != 0:
    time.sleep(0.2)
print("before the restart:", found, flush=True)
input()
until_it_answers()
while end(AdminClient(CONF)) != 0:
    time.sleep(0.2)
time.sleep(5)
seen, began = set(), time.monotonic()
while time.monotonic() < began + 30:
    seen.add((end(old), end(AdminClient(CONF))))
    time.sleep(2)
print("for 30 s, the old client and a new one:", *sorted(seen, key=str))
old.list_topics(timeout=10)
after = end(old)
print("the old client after list_topics():", after)
sys.exit((seen, after) != ({("FENCED_LEADER_EPOCH", 0)}, 0))
END
coproc asking { venv/bin/python ask.py "$port"; }
asking_pid=$! to=${asking[1]}
exec 3<&"${asking[0]}"
read -r line <&3 && echo "$line"
read -r line <&3 && echo "$line"
kill "$broker" && wait "$broker" || true
start
echo go >&"$to"
cat <&3
wait "$asking_pid"
