"""What the page about leaving says: data and offsets go elsewhere, groups as others see them, and dependencies."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.broker.process import BrokerProcess
from kit.either_broker import either_broker
from kit.stage import Stage

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "leaving.md"
TIMEOUT_S = 60.0


@pytest.mark.parametrize("target", ["keylane", pytest.param("apache", marks=pytest.mark.full)])
def test_data_and_offsets_go_to_another_broker(target: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        source = stack.enter_context(BrokerProcess(tmp_path / "source"))
        servers = stack.enter_context(either_broker(target, tmp_path)).bootstrap
        stage = Stage(source.bootstrap, f"leaves-{target}")
        stage.create(2)
        aborting = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": "aborts"})
        aborting.init_transactions(TIMEOUT_S)
        aborting.begin_transaction()
        aborting.produce(stage.topic, b"aborted", partition=0)
        aborting.flush(TIMEOUT_S)
        aborting.abort_transaction(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": source.bootstrap})
        for number in range(20):
            producer.produce(
                stage.topic, b"%d" % number, b"key-%d" % number, number % 2, headers=[("n", b"%d" % number)]
            )
        assert producer.flush(TIMEOUT_S) == 0
        member = Consumer({"bootstrap.servers": source.bootstrap, "group.id": stage.group})
        # Offsets 0 and 1 of partition 0 are the aborted record and its marker.
        positions = [TopicPartition(stage.topic, 0, 2 + 4), TopicPartition(stage.topic, 1, 10)]
        member.commit(offsets=positions, asynchronous=False)
        member.close()
        program = ROOT / "examples" / "copy_to_kafka.py"
        done = subprocess.run(
            [sys.executable, program, source.bootstrap, servers], capture_output=True, text=True, timeout=4 * TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "20 records of 1 topics\n"
        left: list[bytes | None] = []
        there = Stage(servers, f"leaves-{target}", group=stage.group)
        there.run(lambda record: left.append(record.value))
        assert sorted(left, key=lambda value: int(value or b"-1")) == [b"%d" % number for number in range(8, 20, 2)]


def test_a_plain_consumer_goes_on_where_a_drained_group_stands(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        stage = Stage(broker.bootstrap, "drained")
        stage.create(2)
        stage.fill((None, number % 2) for number in range(20))
        stage.run(lambda _: None)
        stage.fill((None, number % 2) for number in range(100, 104))
        plain = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": stage.group, "auto.offset.reset": "error"})
        plain.subscribe([stage.topic])
        places: list[tuple[int | None, int | None]] = []
        while len(places) < 4:
            message = plain.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            places.append((message.partition(), message.offset()))
        plain.close()
        assert sorted(places) == [(0, 10), (0, 11), (1, 10), (1, 11)]


def test_the_page_names_each_dependency_with_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "all"}
    asked = {"": project["dependencies"]} | extras
    wanted = set()
    for extra, requirements in asked.items():
        for requirement in requirements:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None
            wanted.add((name[0], licence(name[0]), extra))
    rows = re.findall(r"^\| `([\w.-]+)` \| ([^|]+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    found = {
        (name, text, extra) for name, text, places in rows for extra in places.replace("`", "").strip().split(", ")
    }
    assert found == {(name, text, extra or "always") for name, text, extra in wanted}


def licence(name: str) -> str:
    """As the installed package says."""
    metadata = importlib.metadata.metadata(name)
    classifiers = [one for one in metadata.get_all("Classifier") or () if one.startswith("License")]
    classified = classifiers[0].rpartition(" :: ")[2] if classifiers else ""
    return metadata["License-Expression"] or classified or metadata["License"].splitlines()[0]
