"""Everything in a snapshot is a metric, and Prometheus reads what is served."""

from __future__ import annotations

import urllib.request
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from keylane import PeerError, Snapshot, UsageError
from keylane.consumer.health import Health
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot
from keylane.flow.breakers import OpenBreaker
from keylane.flow.workers import Histogram, Meter
from keylane.metrics import Family, families
from keylane.metrics.families import COUNTERS, GAUGES, PARTITION_GAUGES
from keylane.metrics.prometheus import MetricsServer, SnapshotCollector
from keylane.offset_servers.between import Counts
from keylane.offset_servers.measures import State, server_families
from keylane.spark.lane_record import LaneStatus

SERVER = State(
    requests=Counts(7, 3),
    appends=Histogram(sum_s=1.5),
    refused=1,
    deposed=1,
    leading=20,
    loading=2,
    partitions=50,
    without_leader=4,
    servers=3,
    connections=11,
    trouble=None,
)


def snapshot() -> Snapshot:
    meter = Meter()
    for took_ns in (500_000, 700_000, 40_000_000):
        meter.add(took_ns)
    part = PartitionSnapshot("t", 3, 5, 4, 9, 2, 11, 20, 2, True, 12, "RunLength v1", 13)
    fresh = PartitionSnapshot("t", 4, 0, None, -1, 0, 0, None)
    numbers: dict[str, Any] = {name: index + 1 for index, name in enumerate([*COUNTERS, *GAUGES])}
    return Snapshot(
        **numbers,
        handler_latency=meter.histogram(),
        oldest=OldestRecord("t", 3, 5, 2_500),
        partitions=(part, fresh),
        breakers=(OpenBreaker("https://service", 4_000),),
    )


def test_every_field_of_a_snapshot_is_a_metric() -> None:
    told_otherwise = {"partitions", "oldest", "handler_latency", "commit_latency", "failures", "breakers", "waits"}
    assert {one.name for one in fields(Snapshot)} - told_otherwise == COUNTERS.keys() | GAUGES.keys()
    of_partition = {*PartitionSnapshot._fields} - {"topic", "partition", "metadata_encoding"}
    assert of_partition | {"lag"} == PARTITION_GAUGES.keys()


def test_names_are_once_and_speak_for_themselves() -> None:
    made = families(snapshot())
    names = [one.name for one in made]
    assert len(names) == len(set(names))
    assert all(name.startswith("keylane_") and one.help for name, one in zip(names, made, strict=True))


def scraped(made: Snapshot, *more: Any) -> dict[tuple[str, tuple[Any, ...]], float]:
    """What Prometheus's own parser reads of it: name and labels to value."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: made, *more))
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}


def test_consumers_of_one_process_share_a_collector_and_each_metric_is_there_once() -> None:
    registry = CollectorRegistry()
    collector = SnapshotCollector(lambda: Snapshot(), {"group": "a"})
    registry.register(collector)
    collector.add(snapshot, {"group": "b"})
    text = generate_latest(registry).decode()
    kinds = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert 'keylane_processed_total{group="a"} 0.0' in text
    assert 'keylane_processed_total{group="b"} 1.0' in text
    assert 'keylane_partition_committed_offset{group="b",partition="3",topic="t"} 4.0' in text
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(SnapshotCollector(snapshot, {"group": "c"}))
    for labels in ({"name": "c"}, {}, {"group": "b"}):
        with pytest.raises(UsageError, match="the same names of labels, and values of its own"):
            collector.add(snapshot, labels)


PART = (("partition", "3"), ("topic", "t"))


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("keylane_processed_total", (), 1),
        ("keylane_dead_lettered_total", (), 4),
        ("keylane_in_flight", (), len(COUNTERS) + 1),
        ("keylane_partitions", (), 2),
        ("keylane_partition_commit_ready_offset", PART, 5),
        ("keylane_partition_committed_offset", PART, 4),
        ("keylane_partition_highest_completed_offset", PART, 9),
        ("keylane_partition_lag", PART, 16),
        ("keylane_partition_remaining", PART, 13),
        ("keylane_partition_paused", PART, 1),
        ("keylane_partition_shards", PART, 2),
        ("keylane_partition_commit_metadata_characters", PART, 12),
        ("keylane_partition_commit_metadata_encoding", (("encoding", "RunLength v1"), *PART), 1),
        ("keylane_oldest_in_flight_seconds", PART, 2.5),
        ("keylane_oldest_in_flight_offset", PART, 5),
        ("keylane_handler_seconds_count", (), 3),
        ("keylane_handler_seconds_bucket", (("le", "0.000524288"),), 1),
        ("keylane_handler_seconds_bucket", (("le", "+Inf"),), 3),
        ("keylane_commit_seconds_count", (), 0),
        ("keylane_breaker_open_seconds", (("target", "https://service"),), 4),
    ],
)
def test_prometheus_reads_it(name: str, labels: Any, value: float) -> None:
    assert scraped(snapshot())[name, labels] == value


def test_what_has_no_value_is_left_out() -> None:
    found = scraped(snapshot())
    assert ("keylane_partition_committed_offset", (("partition", "4"), ("topic", "t"))) not in found
    assert not any(name.startswith("keylane_oldest") for name, _ in scraped(Snapshot()))


def test_labels_are_on_every_sample() -> None:
    assert all(("group", "g") in labels for _, labels in scraped(snapshot(), {"group": "g"}))


@pytest.mark.parametrize(
    ("health", "alive", "ready"),
    [(Health(), 1, 1), (Health(unready="the group is gone"), 1, 0), (Health("it failed", "it failed"), 0, 0)],
)
def test_what_probes_are_told_is_a_metric_too(health: Health, alive: int, ready: int) -> None:
    found = scraped(Snapshot(), {"group": "g"}, lambda: health)
    probes = {place: value for place, value in found.items() if place[0] in ("keylane_alive", "keylane_ready")}
    label = (("group", "g"),)  # and no reason
    assert probes == {("keylane_alive", label): alive, ("keylane_ready", label): ready}


LANES = (
    LaneStatus(0, "running", 1, "host", "1", 1, 0, ()),
    LaneStatus(1, "backing off", None, None, None, 3, 2, ()),
)


def test_each_lane_says_whether_it_runs_and_how_often_it_was_started() -> None:
    found = scraped(Snapshot(), None, None, lambda: LANES)
    assert [found["keylane_lane_running", (("lane", lane),)] for lane in "01"] == [1, 0]
    assert [found["keylane_lane_launches_total", (("lane", lane),)] for lane in "01"] == [1, 3]


def test_a_server_serves_until_its_block_ends() -> None:
    seen: list[int] = []

    def source() -> Snapshot:
        seen.append(1)
        return Snapshot(processed=len(seen))

    with MetricsServer(source, 0) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        for looks in (1, 2):
            with urllib.request.urlopen(url) as answer:
                assert f"keylane_processed_total {looks}.0\n" in answer.read().decode()
        with pytest.raises(PeerError, match=f"metrics cannot be served at 127.0.0.1:{server.port}: Address already"):
            MetricsServer(source, server.port)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def named(families: list[Family]) -> dict[str, dict[str, float | Histogram]]:
    return {one.name: {",".join(row.labels.values()): row.value for row in one.samples} for one in families}


def test_an_offset_server_tells_what_it_does_and_how_it_stands() -> None:
    found = named(server_families(SERVER))
    assert found["keylane_offset_server_requests"] == {"answered": 7, "forwarded": 3}
    assert found["keylane_offset_server_partitions"] == {"leading": 20, "loading": 2, "following": 28}
    assert found["keylane_offset_server_append_seconds"] == {"": SERVER.appends}
    assert found["keylane_offset_server_partitions_without_leader"] == {"": 4}
    assert [found[f"keylane_offset_server_{name}"][""] for name in ("servers", "connections")] == [3, 11]
    assert SERVER.unready == "it loads 2 of 22 offsets partitions that it is to lead"
    assert SERVER._replace(loading=0).unready is None
    assert SERVER._replace(loading=0, trouble="nobody answers").unready == "nobody answers"
