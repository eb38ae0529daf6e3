"""Steps that are kept in a broker's topic: on our broker, and the same on Apache Kafka."""

from __future__ import annotations

import pytest

from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.step_topics import name_of, prepare
from kit.step_owner import StepOwner
from kit.step_world import step_of

ASK, BILL = step_of(4), step_of(4, "bill")


def made(bootstrap: str, topic: str, partitions: int = 1) -> str:
    """The topic of its steps."""
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create_topics({topic: partitions})
    return prepare(admin, name_of("group", topic), topic).name


def test_a_frozen_owner_is_acknowledged_nothing_once_the_next_one_is_there(bootstrap: str) -> None:
    topic = made(bootstrap, "frozen")
    with StepOwner(bootstrap, topic) as old, StepOwner(bootstrap, topic) as new:
        assert old.open() is None
        assert old.keep(ASK, b"first") is None
        assert new.open() is None
        assert new.steps.answer(ASK) == b"first"
        lost = old.keep(BILL, b"late")
        assert lost is not None
        assert "PRODUCER_FENCED" in lost.reason or "INVALID_PRODUCER_EPOCH" in lost.reason
        assert new.steps.answer(BILL) is None
        assert new.keep(BILL, b"answer") is None
        with StepOwner(bootstrap, topic) as third:
            assert third.open() is None
            assert (third.steps.answer(ASK), third.steps.answer(BILL)) == (b"first", b"answer")


def test_an_answer_of_any_size_is_kept(bootstrap: str) -> None:
    topic = made(bootstrap, "large")
    answer = bytes(range(256)) * 12_000
    with StepOwner(bootstrap, topic) as one, StepOwner(bootstrap, topic) as other:
        assert one.open() is None
        assert one.keep(ASK, answer) is None
        assert one.keep(BILL, b"") is None
        assert other.open() is None
        assert other.steps.answer(ASK) == answer
        assert other.steps.answer(BILL) == b""


def test_a_log_that_is_trimmed_has_what_is_needed_and_fences_still(bootstrap: str) -> None:
    topic = made(bootstrap, "trimmed")
    admin = Admin({"bootstrap.servers": bootstrap})
    with StepOwner(bootstrap, topic) as old, StepOwner(bootstrap, topic) as new:
        assert old.open() is None
        old.keep_many([step_of(offset) for offset in range(20)], b"x")
        old.steps.complete(range(19))
        assert admin.delete_records({(topic, 0): old.steps.trim()}) == {(topic, 0): 20}
        assert new.open() is None
        assert [offset for offset in range(20) if new.steps.answer(step_of(offset)) is not None] == [19]
        new.steps.complete([19])
        assert admin.delete_records({(topic, 0): new.steps.trim()}) == {(topic, 0): 22}
        assert old.keep(ASK, b"late") is not None
        assert new.keep(ASK, b"answer") is None


def test_its_topic_has_as_many_partitions_as_the_input_and_gets_more_with_it(bootstrap: str) -> None:
    admin = Admin({"bootstrap.servers": bootstrap})
    topic = made(bootstrap, "growing", 2)
    assert len(topic) <= 249
    admin.add_partitions("growing", 5)
    admin.add_partitions("growing", 5)
    assert prepare(admin, topic, "growing").partitions == 5
    assert admin.topic_configs(topic)["retention.ms"] == "-1"


def test_a_topic_that_would_lose_answers_is_refused(bootstrap: str) -> None:
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create_topics({"unsafe-input": 1})
    admin.create_topics({"unsafe": 1}, config={"cleanup.policy": "compact"})
    with pytest.raises(UsageError, match=r"'unsafe' cannot keep steps of 'unsafe-input': cleanup\.policy=compact: set"):
        prepare(admin, "unsafe", "unsafe-input")
