"""What the client tells of members, as plain values; the bytes of an assignment are read here."""

from __future__ import annotations

import logging
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.kafka.group_descriptions import described_by_list

UUID = "709b4fd3-dd57-43d9-b630-e0a4b2d84654"


def assignment(*topics: tuple[str, list[int]], version: int = 0, user_data: bytes = b"") -> bytes:
    """ConsumerProtocolAssignment of Apache Kafka, versions 0 to 3."""
    data = struct.pack(">hi", version, len(topics))
    for topic, partitions in topics:
        data += struct.pack(
            f">h{len(topic)}si{len(partitions)}i", len(topic), topic.encode(), len(partitions), *partitions
        )
    return data + struct.pack(">i", len(user_data)) + user_data


def listed(data: bytes, *, member_id: str = f"me-{UUID}", protocol_type: str = "consumer") -> Any:
    member = SimpleNamespace(id=member_id, client_id="me", client_host="/10.0.0.7", assignment=data, metadata=b"")
    return SimpleNamespace(
        id="weather",
        state="PreparingRebalance",
        protocol="range",
        protocol_type=protocol_type,
        broker=SimpleNamespace(host="kafka", port=9092),
        members=[member],
    )


def test_an_assignment_is_read_and_sorted() -> None:
    found = described_by_list(listed(assignment(("weather", [3]), ("flights", [7, 0]), version=3, user_data=b"x")))
    assert (found.state, found.assignor, found.coordinator) == ("preparing_rebalance", "range", "kafka:9092")
    assert found.members[0].assignment == (("flights", 0), ("flights", 7), ("weather", 3))
    assert found.members[0].host == "10.0.0.7"


@pytest.mark.parametrize("data", [b"", assignment()])
def test_a_member_without_partitions(data: bytes) -> None:
    assert described_by_list(listed(data)).members[0].assignment == ()


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        assignment(("flights", [1, 2]))[:-9],
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih", 0, 1, -5),
        struct.pack(">hihi", 0, 2**31 - 1, -6, 0),
        struct.pack(">hih1si", 0, 1, 1, b"t", -1),
        struct.pack(">hih1si", 0, 1, 1, b"t", 2**31 - 1),
        struct.pack(">hih1s", 0, 1, 1, b"\xff"),
    ],
)
def test_foreign_bytes_are_no_assignment_and_no_crash(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keylane.kafka"):
        assert described_by_list(listed(data)).members[0].assignment == ()
    assert "the assignment of member me-709b4fd3" in caplog.text


def test_another_protocols_bytes_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert described_by_list(listed(b"\xff" * 9, protocol_type="connect")).members[0].assignment == ()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("member_id", "instance_id"),
    [(f"lane-0-{UUID}", "lane-0"), (f"me-{UUID}", None), ("me", None), ("some-other-scheme", None)],
)
def test_a_static_member_is_known_by_its_id(member_id: str, instance_id: str | None) -> None:
    assert described_by_list(listed(b"", member_id=member_id)).members[0].group_instance_id == instance_id
