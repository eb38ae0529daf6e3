"""A broker as a process: its start, its refusals, its end, and the end of its parent."""

from __future__ import annotations

import datetime
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kio.schema.produce.v9.request as schema
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v4.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import Records, i32

from keylane.broker.process import BrokerProcess
from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.wire.batches import NewRecord, encode_batch
from kit.processes import Started
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOADED = {"crc32c", "kio", "hypothesis"}
"""Of other packages; kio looks for hypothesis, and the broker for nothing in it."""


def run(*arguments: str, data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keylane.broker", "--data-dir", str(data_dir), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


def lines_of(ended: subprocess.CompletedProcess[str]) -> int:
    """Of what it has told; without those on loading, which come where the machine is busy."""
    return sum(" INFO keylane.coordinator: " not in line for line in ended.stderr.splitlines())


def loaded(*arguments: str, env: dict[str, str]) -> list[str]:
    """The modules that an interpreter loads until it is ready, which it says with a line, or has ended."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-X", "importtime", *arguments]
    with Started(command, text=True, env=env, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it did not start"
        _, said = process.communicate(timeout=30)
    lines = [line for line in said.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines[1:]]


@pytest.mark.parametrize("system", ["bare", "with a hook"])
def test_little_is_loaded_before_it_is_ready(tmp_path: Path, system: str) -> None:
    """How long a start takes is measured by `make bench-broker`; what has made it long is what it loads. What the
    system loads into every interpreter (Ubuntu's `apport_python_hook`, an editable install's finder) is not ours."""
    env = dict(os.environ)
    if system == "with a hook":
        (tmp_path / "some_hook.py").touch()
        (tmp_path / "sitecustomize.py").write_text("import some_hook")
        env["PYTHONPATH"] = str(tmp_path)
    bare = loaded("-c", "print()", env=env)
    assert ("some_hook" in bare) == (system == "with a hook")
    broker = ("-m", "keylane.broker", "--until-stdin-ends", "--port", "0", "--data-dir", str(tmp_path / "data"))
    ours = set(loaded(*broker, env=env)) - set(bare)
    packages = {name.partition(".")[0] for name in ours} - sys.stdlib_module_names - {"keylane"}
    assert {name for name in packages if not name.startswith(("_", "org"))} <= LOADED
    assert len([name for name in ours if name.startswith("kio.schema.")]) < 5, "messages load when they are asked"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--set", "num.partition=3"], 2, "did you mean num.partitions"),
        (["--set", "nonsense"], 2, "--set nonsense: give NAME=VALUE"),
        (["--config", "/nowhere/server.properties"], 2, "--config /nowhere/server.properties"),
        (["--until-stdin-ends"], 2, "--until-stdin-ends needs a pipe"),
        (["--port", "70000"], 2, "--port 70000: give a number from 0"),
        (["--host", "192.0.2.7"], 2, "keylane.allow.unauthenticated.remote.clients=true"),
        (["--host", "0.0.0.0"], 2, "say which one clients are to connect to"),
        (["--set", "listeners=SASL_PLAINTEXT://:0", "--set", "keylane.users.file=/nowhere"], 2, "broker users add"),
        (["--port", "0", "--host", "256.1.1.1"], 1, "cannot listen on 256.1.1.1:0"),
    ],
)
def test_a_wrong_argument_is_one_line(tmp_path: Path, arguments: Sequence[str], code: int, says: str) -> None:
    ended = run(*arguments, data_dir=tmp_path / "data")
    assert ended.returncode == code
    assert says in ended.stderr
    assert lines_of(ended) == 1
    assert ended.stdout == ""


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--port", str(port), data_dir=tmp_path / "data")
        assert ended.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
        assert "give another --port" in ended.stderr
        assert lines_of(ended) == 1
        with pytest.raises(PeerError, match="cannot listen"):
            BrokerProcess(tmp_path / "data", port)


def test_a_folder_in_use_or_not_ours_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    ended = run("--port", "0", data_dir=tmp_path / "photos")
    assert (ended.returncode, lines_of(ended)) == (1, 1)
    assert "is not empty" in ended.stderr
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    with BrokerProcess(tmp_path / "data"):
        ended = run("--port", "0", data_dir=tmp_path / "data")
        assert (ended.returncode, lines_of(ended)) == (1, 1)
        assert "in use by another broker" in ended.stderr


def test_damage_is_one_line_with_file_and_position_and_exit_1(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data"):
        pass
    registry = tmp_path / "data" / "topics.json"
    registry.write_bytes(registry.read_bytes().replace(b"[", b"{"))
    ended = run("--port", "0", data_dir=tmp_path / "data")
    assert (ended.returncode, lines_of(ended)) == (1, 1)
    assert f"{registry} at byte" in ended.stderr


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ended = run("--port", "0", data_dir=tmp_path / "file" / "data")
    assert (ended.returncode, lines_of(ended)) == (1, 1)
    assert "give a --data-dir that can be written" in ended.stderr


def test_connections_that_are_idle_are_closed(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": "4000"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker, ProtocolClient(broker.bootstrap) as client:
        client.ask("api_versions", 0)
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with ProtocolClient(broker.bootstrap) as client:
        client.ask("api_versions", 0)
        process = broker._process
        assert process is not None
        process.send_signal(number)
        assert process.wait(10) == 0
        assert client.is_closed_by_peer()
    assert (tmp_path / "data" / "clean-shutdown.json").exists()
    broker.start()
    assert not (tmp_path / "data" / "clean-shutdown.json").exists(), "used once"
    assert broker.terminate() == 0


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from keylane.broker.process import BrokerProcess\n"
        "broker = BrokerProcess(sys.argv[1])\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    with Started(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        handle = os.pidfd_open(pid)
        assert os.getsid(pid) == pid, "a session of its own"
        parent.kill()
    try:
        ended, _, _ = select.select([handle], [], [], 10)
        assert ended, "the broker outlived its parent"
    finally:
        os.close(handle)
    assert (tmp_path / "data" / "clean-shutdown.json").exists()


def content(number: int) -> bytes:
    return b"<%d>" % number * 200


def produce(client: ProtocolClient, number: int) -> ErrorCode:
    records = encode_batch([NewRecord(None, content(number))], timestamp_ms=1)
    partition = schema.PartitionProduceData(index=i32(0), records=Records(records))
    topics = (schema.TopicProduceData(name=TopicName("t"), partition_data=(partition,)),)
    wait = datetime.timedelta(seconds=10)
    answer = client.ask("produce", 9, transactional_id=None, acks=-1, timeout=wait, topic_data=topics)
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def test_a_disk_that_takes_no_more_is_told_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with ProtocolClient(broker.bootstrap) as client:
            topic = MetadataRequestTopic(name=TopicName("t"))
            client.ask("metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
            codes = [produce(client, number) for number in range(20)]
        good = codes.index(ErrorCode.kafka_storage_error)
        assert 3 < good < 19
        assert set(codes[:good]) == {ErrorCode.none}
        assert set(codes[good:]) == {ErrorCode.kafka_storage_error}, "never again until a restart"
        broker.restart()
        with ProtocolClient(broker.bootstrap) as client:
            assert produce(client, 99) == ErrorCode.none
        log = (tmp_path / "data" / "topics" / "t-0" / f"{0:020d}.log").read_bytes()
        assert [content(number) in log for number in range(20)] == [number < good for number in range(20)]


def ephemeral(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """A broker for a test of another language; its temporary folders are in `tmp_path`."""
    command = [sys.executable, "-m", "keylane.broker", "--ephemeral", "--port", "0", "--print-bootstrap", *arguments]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, **pipes)


@pytest.mark.parametrize("ending", ["its standard input ends", "SIGTERM"])
def test_an_ephemeral_broker_says_where_it_is_and_leaves_nothing(tmp_path: Path, ending: str) -> None:
    with ephemeral(tmp_path, "--until-stdin-ends") as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline()
        (folder,) = tmp_path.iterdir()
        with ProtocolClient(bootstrap.strip()) as client:
            answer = client.ask(
                "metadata", 4, topics=(MetadataRequestTopic(name=TopicName("t")),), allow_auto_topic_creation=True
            )
            (broker,) = answer.brokers
            assert bootstrap == f"{broker.host}:{broker.port}\n", "that, and nothing else"
            assert (folder / "data" / "topics" / "t-0").is_dir(), "it is a broker like others while it runs"
        if ending == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_an_ephemeral_broker_takes_no_data_folder(tmp_path: Path) -> None:
    with ephemeral(tmp_path, "--data-dir", str(tmp_path / "data")) as process:
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert f"--data-dir {tmp_path / 'data'} and --ephemeral: give one of them" in said
    assert list(tmp_path.iterdir()) == []


def test_where_no_temporary_folder_can_be_made(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    command = [
        sys.executable,
        "-c",
        f"""
import sys, tempfile
tempfile.tempdir = {str(nowhere)!r}
sys.argv = ["broker", "--ephemeral", "--port", "0"]
from keylane.broker.__main__ import main
sys.exit(main())
""",
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "--ephemeral: no temporary folder can be made" in done.stderr
    assert str(nowhere) in done.stderr


def test_options_that_were_changed_outlive_a_restart(tmp_path: Path) -> None:
    def retention(broker: BrokerProcess) -> dict[str, tuple[str, int]]:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resources = [ConfigResource("topic", "logs"), ConfigResource("broker", "1")]
        found = {one.name: future.result(30) for one, future in admin.describe_configs(resources).items()}
        topic, own = found["logs"]["retention.ms"], found["1"]["log.retention.ms"]
        return {"topic": (topic.value, int(topic.source)), "broker": (own.value, int(own.source))}

    with BrokerProcess(tmp_path / "data") as broker:
        assert Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"logs": 1})
        entry = ConfigEntry("log.retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource("broker", "1", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.incremental_alter_configs([changed]).values():
            future.result(30)
        expected = {"topic": ("5000", 2), "broker": ("5000", 2)}
        assert retention(broker) == expected
        broker.kill()
        broker.start()
        assert retention(broker) == expected
