"""What a progress event says about where a query stands."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.errors import PeerError, UsageError
from keylane.offsets import OffsetMap
from keylane.spark.structured.group_commits import GroupCommits, ended_at
from keylane.spark.structured.plans import Plan

KAFKA = {"bootstrap.servers": "h:1", "group.id": "g"}
T0 = ("t", 0)


def test_offsets_of_both_sources() -> None:
    ours = json.dumps(Plan("q", 3, {T0: 5}, {T0: 9}, epochs={T0: 4}, ids={"t": "one"}).to_json())
    assert ended_at(ours) == ({T0: OffsetMap(9)}, {T0: 4}, {"t": "one"})
    assert ended_at('{"t":{"0":9},"u":{"3":1}}') == ({T0: OffsetMap(9), ("u", 3): OffsetMap(1)}, {}, {})
    assert ended_at("{'t': {'0': 9}}") == ({T0: OffsetMap(9)}, {}, {}), "as PySpark before 4.2 has it"


@pytest.mark.parametrize("text", [None, "null", "5", "not json", '{"logOffset":3}', '{"t":{"a":3}}', '{"t":{"0":"x"}}'])
def test_other_sources_say_nothing(text: str | None) -> None:
    assert ended_at(text) == ({}, {}, {})


@pytest.fixture(autouse=True)
def leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that tell their epochs."""
    monkeypatch.setattr(GroupCommits, "_epochs", lambda _self, ended: dict.fromkeys(ended, 7))


class Member:
    def __init__(self) -> None:
        self.commits: list[dict[tuple[str, int], int]] = []
        self.fenced = False

    def commit(self, offsets: Any) -> bool:
        if self.fenced:
            raise PeerError("fenced")
        self.commits.append({one.name: one.offset for one in offsets})
        return True

    def close(self) -> None:
        self.commits.append({})


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    """Of whoever joins the group."""
    made = Member()
    monkeypatch.setattr("keylane.kafka.sole_member.SoleMember", lambda *_: made)
    return made


def progress(offset: int, name: str | None = None, run: str = "run") -> Any:
    source = SimpleNamespace(endOffset=json.dumps({"t": {"0": offset}}))
    return SimpleNamespace(progress=SimpleNamespace(name=name, runId=run, sources=[source]))


def test_each_batch_of_the_named_query_is_committed_until_another_driver_has_the_group(member: Member) -> None:
    listener = GroupCommits(KAFKA, query="mine")
    for event in (progress(3, "mine"), progress(7, "another"), progress(4, "mine")):
        listener.onQueryProgress(event)
    member.fenced = True
    listener.onQueryProgress(progress(5, "mine"))
    member.fenced = False
    listener.onQueryProgress(progress(6, "mine"))
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    assert member.commits == [{T0: 3}, {T0: 4}, {}]


def test_it_leaves_the_group_at_the_end_of_its_own_run_alone(member: Member) -> None:
    listener = GroupCommits(KAFKA)
    listener.onQueryProgress(progress(3, run="second"))
    listener.onQueryTerminated(SimpleNamespace(runId="first"))
    assert member.commits == [{T0: 3}]
    listener.onQueryTerminated(SimpleNamespace(runId="second"))
    assert member.commits == [{T0: 3}, {}]


def test_nothing_is_committed_once_it_is_closed(member: Member) -> None:
    """By an event that was under way when the listener was removed, which would join the group anew."""
    listener = GroupCommits(KAFKA)
    listener.onQueryProgress(progress(2))
    listener.close()
    listener.onQueryProgress(progress(3))
    assert member.commits == [{T0: 2}, {}]


@pytest.mark.parametrize("name", KAFKA)
def test_broker_and_group_are_needed(name: str) -> None:
    with pytest.raises(UsageError, match=f"kafka\\['{name}'\\] is missing"):
        GroupCommits({key: value for key, value in KAFKA.items() if key != name})


@pytest.mark.parametrize("offsets", [(40, 13), (13, 40)])
def test_of_two_sources_of_a_partition_the_slower_one_counts(member: Member, offsets: tuple[int, int]) -> None:
    """Whichever Spark names first."""
    sources = [SimpleNamespace(endOffset=json.dumps({"t": {"0": offset}})) for offset in offsets]
    event: Any = SimpleNamespace(progress=SimpleNamespace(name=None, runId="run", sources=sources))
    GroupCommits(KAFKA).onQueryProgress(event)
    assert member.commits == [{T0: 13}]


def test_nothing_is_committed_of_a_topic_that_is_another_one_in_the_groups_cluster(
    member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The source went on in a mirror, and the listener has the brokers of before."""
    asked: list[dict[str, str]] = []

    def topic_ids(topics: dict[str, str]) -> dict[str, str]:
        asked.append(topics)
        return dict.fromkeys(topics, "ours")

    monkeypatch.setattr(GroupCommits, "_asked", lambda _: SimpleNamespace(topic_ids=topic_ids))
    listener = GroupCommits(KAFKA)
    for offset, known in ((3, "ours"), (4, "mirror"), (5, "mirror"), (6, "ours")):
        text = json.dumps(Plan("q", offset, {T0: 0}, {T0: offset}, ids={"t": known}).to_json())
        sources = [SimpleNamespace(endOffset=text)]
        event: Any = SimpleNamespace(progress=SimpleNamespace(name=None, runId="run", sources=sources))
        listener.onQueryProgress(event)
    assert member.commits == [{T0: 3}, {T0: 6}]
    assert asked == [{"t": "ours"}, {"t": "mirror"}, {"t": "ours"}]
    assert "the topic t that the query reads is another one than that at h:1" in caplog.text
