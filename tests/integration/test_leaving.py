"""What the page about leaving says: of groups as others see them, and of dependencies."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from confluent_kafka import Consumer

from keylane.broker.process import BrokerProcess
from kit.stage import Stage

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "leaving.md"
TIMEOUT_S = 60.0


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
