"""Java: Apache Kafka's own tools, all of its Admin, Spark's Kafka connector, and the JVM Parallel Consumer."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import peers
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # exported untyped
from peers import jvm

from compat.results import Outcome, check

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
COUNT = 1_000
TIMEOUT_S = 120
DUMPED = "DumpLogSegments on our files"


def tool(main_class: str, *arguments: str) -> str:
    done = peers.kafka_tool(main_class, *arguments, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, f"{done.stdout[-300:]} {done.stderr[-300:]}"
    return done.stdout


def tools(bootstrap: str, folder: str) -> list[Outcome]:
    """Every tool, in an order in which each finds what it needs."""
    data = Path(folder) / "data"
    address = ("--bootstrap-server", bootstrap)

    def topics() -> None:
        tool(f"{TOOLS}.TopicCommand", *address, "--create", "--topic", "tools", "--partitions", "1", "--config",
             "retention.ms=600000")  # fmt: skip
        said = tool(f"{TOOLS}.TopicCommand", *address, "--describe", "--topic", "tools")
        assert "PartitionCount: 1" in said, said
        assert "retention.ms=600000" in said, said

    def configs() -> None:
        what = ("--entity-type", "topics", "--entity-name", "tools")
        command = peers.config_command()
        tool(command, *address, *what, "--alter", "--add-config", "segment.ms=99000")
        said = tool(command, *address, *what, "--describe")
        assert "segment.ms=99000" in said, said
        assert "DYNAMIC_TOPIC_CONFIG" in said, said

    def producer() -> None:
        said = tool(f"{TOOLS}.VerifiableProducer", *address, "--topic", "tools", "--max-messages", str(COUNT))
        assert said.count("producer_send_success") == COUNT

    def consumer() -> None:
        wanted = ("--group-id", "tools", "--max-messages", str(COUNT), "--reset-policy", "earliest")
        said = tool(f"{TOOLS}.VerifiableConsumer", *address, "--topic", "tools", *wanted)
        read = sum(json.loads(line)["count"] for line in said.splitlines() if '"records_consumed"' in line)
        assert read >= COUNT, read

    def listed() -> None:
        assert "tools" in tool(GROUPS, *address, "--list")

    def described() -> None:
        said = tool(GROUPS, *address, "--describe", "--group", "tools")
        lags = [line.split()[5] for line in said.splitlines() if line.startswith("tools")]
        assert lags == ["0"], said

    def reset() -> None:
        tool(
            GROUPS, *address, "--group", "tools", "--reset-offsets", "--to-offset", "3", "--topic", "tools", "--execute"
        )
        said = tool(GROUPS, *address, "--describe", "--group", "tools")
        assert {line.split()[3] for line in said.splitlines() if line.startswith("tools")} == {"3"}, said

    def offsets_deleted() -> None:
        tool(GROUPS, *address, "--group", "tools", "--delete-offsets", "--topic", "tools:0")

    def deleted() -> None:
        tool(GROUPS, *address, "--delete", "--group", "tools")
        assert "tools" not in tool(GROUPS, *address, "--list")

    def records_deleted() -> None:
        wanted = Path(folder) / "delete.json"
        rows = [{"topic": "tools", "partition": 0, "offset": 5}]
        wanted.write_text(json.dumps({"version": 1, "partitions": rows}))
        said = tool(f"{TOOLS}.DeleteRecordsCommand", *address, "--offset-json-file", str(wanted))
        assert "low_watermark: 5" in said, said
        said = tool(f"{TOOLS}.GetOffsetShell", *address, "--topic", "tools", "--time", "earliest")
        assert "tools:0:5" in said, said

    def dumped() -> None:
        segments = sorted(data.glob("topics/tools-*/*.log"))
        files = ",".join(map(str, segments))
        said = tool(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", files)
        assert said.count("| offset:") == COUNT, said[-300:]
        assert "isvalid: false" not in said

    tests = {
        "TopicCommand: create, describe": topics, "ConfigCommand: alter, describe": configs,
        "VerifiableProducer": producer, "VerifiableConsumer": consumer,
        "ConsumerGroupCommand: list": listed, "ConsumerGroupCommand: describe": described,
        "ConsumerGroupCommand: reset offsets": reset, "ConsumerGroupCommand: delete offsets": offsets_deleted,
        "ConsumerGroupCommand: delete": deleted, DUMPED: dumped,
        "DeleteRecordsCommand, GetOffsetShell": records_deleted,
    }  # fmt: skip
    found = [check(name, test) for name, test in tests.items() if test is not dumped or data.exists()]
    return found if data.exists() else [*found, Outcome(DUMPED, "excluded", "it is about files of the embedded broker")]


ADMIN_LACKS = {
    "describeStreamsGroups": "no groups of the streams protocol",
    **dict.fromkeys(("alterClientQuotas", "describeClientQuotas"), "no client quotas"),
    **dict.fromkeys(
        ("alterUserScramCredentials", "describeUserScramCredentials"), "no SCRAM API (users: keylane broker users)"
    ),
    **dict.fromkeys((f"{what}DelegationToken" for what in ("create", "renew", "expire", "describe")),
                    "no delegation tokens"),
    **dict.fromkeys(("unregisterBroker", "unregisterController"), "one node, which nobody takes out"),
}  # fmt: skip
"""Methods that the embedded broker refuses, and why."""


def admin(bootstrap: str, folder: str) -> list[Outcome]:
    """Each method of Java's Admin once; where Apache Kafka refuses, that refusal is wanted."""
    done = subprocess.run(jvm.admin(bootstrap), capture_output=True, text=True, timeout=300, check=False)
    rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    assert rows, f"{done.stdout[-300:]} {done.stderr[-300:]}"
    lacks = ADMIN_LACKS if (Path(folder) / "data").exists() else {}
    return [_admin_outcome(name, said, lacks.get(name)) for name, said in rows]


def _admin_outcome(name: str, said: str, lack: str | None) -> Outcome:
    if lack is not None:
        return Outcome(name, "failed", "it works by now") if said == "passed" else Outcome(name, "excluded", lack)
    return Outcome(name, "passed") if said == "passed" else Outcome(name, "failed", said[:300])


def fill(bootstrap: str, topic: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        producer.produce(topic, value, key=b"%d" % (number % 50), partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0


_SPARK = """
import sys, keylane as kl
bootstrap, jars = sys.argv[1:]
spark = kl.spark.session("local[2]", "compat", **{"spark.ui.enabled": "false", "spark.jars": jars})
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "spark", "startingOffsets": "earliest"}
batch = spark.read.format("kafka").options(**options).load().count()
out = {"kafka.bootstrap.servers": bootstrap, "topic": "spark-out", "checkpointLocation": sys.argv[1].replace(":", "-")}
stream = spark.readStream.format("kafka").options(**options).load()
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
streamed = spark.table("seen").count()
frame = spark.read.format("kafka").options(**options).load().select("key", "value")
frame.write.format("kafka").options(**out).save()
options["subscribe"] = "spark-out"
print("FOUND", batch, streamed, spark.read.format("kafka").options(**options).load().count())
"""


def spark(bootstrap: str, folder: str) -> list[Outcome]:
    """Spark's JVM connector: a batch, a stream and a sink."""

    def connector() -> None:
        fill(bootstrap, "spark", b"v")
        jars = ",".join(map(str, peers.jars("spark_kafka").glob("*.jar")))
        command = [sys.executable, "-c", _SPARK, bootstrap, jars]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert f"FOUND {COUNT} {COUNT} {COUNT}" in done.stdout, f"{done.stdout[-200:]} {done.stderr[-300:]}"

    return [check("batch, stream and sink", connector)]


def parallel_consumer(bootstrap: str, _folder: str) -> list[Outcome]:
    """The JVM Parallel Consumer in each ordering, on a topic of records whose handlers sleep a little."""

    def runs(ordering: str) -> None:
        topic = f"pc-{ordering.lower()}"
        fill(bootstrap, topic, b"50")
        with jvm.LineProcess(jvm.command(jvm.BENCH, bootstrap)) as process:
            answer = process.ask(f"{topic} {ordering} {COUNT} 16 sleep")
        assert answer.split()[-1] == str(COUNT), answer

    return [check(ordering, functools.partial(runs, ordering)) for ordering in ("UNORDERED", "KEY", "PARTITION")]
