"""The one member of a group: it commits with a generation, is fenced by its successor, and refuses company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.sole_member import SoleMember
from keylane.offsets import OffsetMap, encode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"t": 2, "later": 1})
        yield broker.bootstrap


@dataclass(frozen=True)
class At:
    """An offset to commit."""

    name: tuple[str, int]
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def member(servers: str, group: str, instance_id: str = "one") -> SoleMember:
    return SoleMember({"bootstrap.servers": servers, "group.id": group}, ["t"], instance_id)


def committed(servers: str, group: str) -> dict[tuple[str, int], int]:
    found = Admin({"bootstrap.servers": servers}).committed_offsets(group)
    return {name: one.offset for name, one in found.items()}


def test_it_commits_offsets_and_maps_of_topics_that_come_later_too(servers: str) -> None:
    metadata = encode(OffsetMap(3, [3], 5))
    one = member(servers, "commits")
    try:
        assert one.commit([At(("t", 0), 3, metadata), At(("t", 1), 4)])
        assert one.commit([At(("t", 1), 5), At(("later", 0), 1)])
        admin = Admin({"bootstrap.servers": servers})
        assert admin.committed_offsets("commits")["t", 0].metadata == metadata
        assert committed(servers, "commits") == {("t", 0): 3, ("t", 1): 5, ("later", 0): 1}
        assert [found.group_instance_id for found in admin.describe_group("commits").members] == ["one"]
    finally:
        one.close()


def test_a_second_one_under_the_same_id_fences_the_first(servers: str) -> None:
    first = member(servers, "fenced")
    try:
        assert first.commit([At(("t", 0), 3)])
        second = member(servers, "fenced")
        try:
            assert second.commit([At(("t", 0), 5)])
            with pytest.raises(kl.PeerError, match="no longer its member"):
                first.commit([At(("t", 0), 4)])
            assert committed(servers, "fenced") == {("t", 0): 5}
        finally:
            second.close()
    finally:
        first.close()


def test_what_is_of_a_deleted_topic_holds_up_nothing(
    servers: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keylane.kafka.sole_member.DELETED_S", 0.2)
    admin = Admin({"bootstrap.servers": servers})
    admin.create_topics({"gone": 2})
    one = member(servers, "deleted")
    try:
        assert one.commit([At(("t", 0), 3), At(("gone", 0), 1)])
        admin.delete_topics(["gone"])
        assert one.commit([At(("t", 0), 4), At(("gone", 0), 2)])
        assert one.commit([At(("t", 0), 5), At(("gone", 1), 2)])
        assert committed(servers, "deleted") == {("t", 0): 5}
        assert caplog.text.count("topic 'gone' was deleted; nothing is committed of it") == 1
        admin.create_topics({"gone": 2})
        assert one.commit([At(("gone", 0), 1)])
        assert committed(servers, "deleted") == {("t", 0): 5, ("gone", 0): 1}
    finally:
        one.close()


@pytest.mark.full
def test_beside_others_it_commits_nothing(servers: str) -> None:
    other = member(servers, "shared", "other")
    try:
        assert other.commit([At(("t", 0), 3)])
        one = member(servers, "shared")
        try:
            with pytest.raises(kl.PeerError, match=r"other members.*only member of its group"):
                one.own({("t", 0), ("t", 1)}, 10.0)
        finally:
            one.close()
    finally:
        other.close()
    assert committed(servers, "shared") == {("t", 0): 3}


def test_a_broker_that_is_away_delays_commits_and_fails_nothing(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.kafka.sole_member.COMMIT_S", 1.0)
    one = SoleMember({"bootstrap.servers": "127.0.0.1:1", "group.id": "away"}, ["t"], "one")
    try:
        assert one.commit([At(("t", 0), 3)]) is False
    finally:
        one.close()
