"""A topic that is not safe for committed offsets is refused by what is wrong with it."""

from __future__ import annotations

import pytest

from keylane.offset_servers.topic import SAFE, faults


def test_what_is_made_is_safe() -> None:
    assert faults(SAFE, 3) == []


@pytest.mark.parametrize(
    ("changed", "replicas", "said"),
    [
        ({"cleanup.policy": "delete"}, 3, "cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, 3, "cleanup.policy=compact,delete"),
        ({"min.insync.replicas": "1"}, 3, "min.insync.replicas=1"),
        ({"unclean.leader.election.enable": "true"}, 3, "unclean.leader.election.enable=true"),
        ({"segment.bytes": "1073741824"}, 3, "segment.bytes=1073741824"),
        ({}, 2, "2 replicas"),
    ],
)
def test_each_fault_is_named(changed: dict[str, str], replicas: int, said: str) -> None:
    found = faults(SAFE | changed, replicas)
    assert len(found) == 1
    assert said in found[0]


def test_a_log_without_replicas_has_to_be_compacted_all_the_same() -> None:
    assert faults({"cleanup.policy": "compact"}, 1, is_replicated=False) == []
    assert faults({"cleanup.policy": "delete"}, 1, is_replicated=False) != []
