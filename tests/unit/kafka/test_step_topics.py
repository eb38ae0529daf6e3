"""Names of topics for steps, and what such a topic has to be."""

from __future__ import annotations

import re

import pytest

from keylane import patterns
from keylane.kafka.step_topics import KEPT, LEAST_BATCH_BYTES, faults, name_of

AWKWARD = ["orders", "my group", "app:scoring", "g/1", "a_b", "a.b", "ä" * 300, "g" * 249, "-", ""]


def test_any_group_and_topic_give_a_name_of_their_own_that_kafka_takes() -> None:
    names = [name_of(group, topic) for group in AWKWARD for topic in AWKWARD]
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", one) for one in names)
    assert len({one.replace("_", ".") for one in names}) == len(names), "Kafka takes . and _ for the same"
    assert name_of("g-orders", "x") != name_of("g", "orders-x")


def test_no_pattern_reads_it() -> None:
    assert not patterns.is_read(("^.*",), name_of("group", "orders"))


def test_what_would_lose_answers_is_named_with_the_way_out() -> None:
    assert faults(KEPT) == []
    wrong = {
        "cleanup.policy": "compact",
        "retention.ms": "604800000",
        "retention.bytes": "1",
        "unclean.leader.election.enable": "true",
        "max.message.bytes": "1000",
    }
    found = faults(wrong)
    assert [one.partition(":")[0] for one in found] == [f"{name}={value}" for name, value in wrong.items()]
    assert found[-1].endswith(f"set {LEAST_BATCH_BYTES} at least")


@pytest.mark.parametrize("policy", ["compact,delete", ""])
def test_nothing_may_go_by_its_key(policy: str) -> None:
    assert len(faults(KEPT | {"cleanup.policy": policy})) == 1
