"""A wrong option is one sentence that names it, its value and the way out."""

from pathlib import Path
from typing import Any

import pytest

from keylane.demo.options import DemoOptions
from keylane.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ordering": "keys"}, "--ordering keys: give one of key, partition, unordered"),
        ({"records": 0}, "--records 0: give a number from 1 to 336776, or `all`"),
        ({"records": 336_777}, "--records 336777"),
        ({"lanes": 0}, "--lanes 0"),
        ({"lanes": 65}, "--lanes 65"),
        ({"latency_ms": -1}, "--latency-ms -1"),
        ({"lanes": 4, "max_concurrency": 3}, "--max-concurrency 3: give at least one a lane (4)"),
        ({"spark": False, "master": "local[2]"}, "--master local[2]: leave it out with --no-spark"),
        ({"master": "local[4]"}, "--master local[4]: 4 lanes and a free task slot take 5: give local[5], or --lanes 3"),
        ({"master": "local[2,4]"}, "give local[5], or --lanes 1"),
        ({"master": "local", "lanes": 1}, "--master local: 1 lanes and a free task slot take 2: give local[2]"),
        ({"bootstrap": "localhost"}, "--bootstrap localhost: give HOST:PORT"),
        ({"bootstrap": ":9092"}, "--bootstrap :9092"),
        ({"bootstrap": "a:1,b:x"}, "--bootstrap a:1,b:x"),
        ({"bootstrap": "a:65536"}, "--bootstrap a:65536"),
    ],
)
def test_a_wrong_option_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        DemoOptions(**changes)
    assert text in str(error.value)


def test_the_master_has_a_slot_for_each_lane_and_one_more() -> None:
    assert DemoOptions(lanes=3).spark_master == "local[4]"
    assert DemoOptions(master="local[8]").spark_master == "local[8]"


def test_a_list_of_brokers_is_fine() -> None:
    DemoOptions(bootstrap="a:9092,[::1]:9093", keep=Path("x"))


@pytest.mark.parametrize("master", ["local[5]", "local[*]", "spark://host:7077", "local-cluster[2,3,1024]"])
def test_masters_with_room_or_unknown_room_are_fine(master: str) -> None:
    DemoOptions(lanes=4, master=master)
