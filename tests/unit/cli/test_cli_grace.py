"""A grace that is too short for a stop is said where a run starts."""

from __future__ import annotations

from typing import Any

import pytest

import keylane as kl
from keylane.cli.grace import EXECUTORS_GRACE, seconds_of, short_grace

K8S = "k8s://https://kubernetes.default.svc"


def pipeline(**options: Any) -> kl.Pipeline:
    kafka = {"bootstrap.servers": "b:9092", "group.id": "g"}
    return kl.Pipeline(kafka=kafka, topics=["t"], handler=print, **options)


@pytest.mark.parametrize(
    ("options", "grace_s", "says"),
    [
        ({}, None, ""),
        ({}, 60, ""),
        ({}, 30, "--grace 30: a stop takes up to 60 s (drain_timeout_ms=30000, "),
        ({"drain_timeout_ms": 60_000}, 75, "a stop takes up to 90 s (drain_timeout_ms=60000, "),
        ({"drain_timeout_ms": 1_000, "revoke_timeout_ms": 50_000}, 75, "a stop takes up to 80 s "),
    ],
)
def test_the_grace_of_a_member_is_held_against_its_drain(options: Any, grace_s: float | None, says: str) -> None:
    found = short_grace(pipeline(**options), grace_s, None, {})
    assert len(found) == bool(says)
    assert all(says in one and "raise terminationGracePeriodSeconds" in one for one in found)


@pytest.mark.parametrize(
    ("spark", "conf", "says"),
    [
        (K8S, {}, f"{EXECUTORS_GRACE}=30s: a lane takes up to 40 s"),
        (K8S, {EXECUTORS_GRACE: "20"}, f"{EXECUTORS_GRACE}=20s: "),
        (K8S, {EXECUTORS_GRACE: "75s"}, ""),
        (K8S, {EXECUTORS_GRACE: "2min"}, ""),
        ("spark://master:7077", {}, ""),
    ],
)
def test_the_grace_of_executors_is_held_against_their_lanes(spark: str, conf: Any, says: str) -> None:
    found = short_grace(pipeline(), 75, spark, conf)
    assert len(found) == bool(says)
    assert all(says in one and f"give --conf {EXECUTORS_GRACE}=45s" in one for one in found)


def test_a_time_of_spark_has_a_unit_or_is_of_seconds() -> None:
    given = ("75", "75s", "2m", "1h", "1500ms", None, "soon")
    assert [seconds_of(one, 30.0) for one in given] == [75, 75, 120, 3600, 1.5, 30, 30]
