"""What `delivery="transactional"` refuses, and what it makes of the rest."""

from __future__ import annotations

from typing import Any

import pytest

import keylane as kl
from keylane.kafka.settings import transactional_id, transactional_settings

KAFKA = {"bootstrap.servers": "b:9092", "group.id": "g"}


def pipeline(**changes: Any) -> kl.Pipeline:
    chosen: dict[str, Any] = {"kafka": KAFKA, "topics": ["t"], "handler": print, "delivery": "transactional"}
    return kl.Pipeline(**(chosen | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topics": kl.Partitions([("t", 0)])}, "partitions assigned by hand have none: give topics"),
        ({"on_produced": print}, "on_produced: delivery='transactional' may take an output back"),
        ({"kafka": KAFKA | {"isolation.level": "read_uncommitted"}}, "records that their producer takes back"),
        ({"kafka": KAFKA | {"enable.idempotence": "false"}}, "needs an idempotent producer"),
        ({"commit": kl.Commit(interval_ms=6_000)}, "Commit.interval_ms=6000: delivery='transactional' commits"),
        (
            {"delivery": "at_least_once", "kafka": KAFKA | {"transactional.id": "x"}},
            "use delivery=Transactional(id_prefix)",
        ),
    ],
)
def test_what_cannot_hold_is_refused_in_one_sentence(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        pipeline(**changes)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_results_are_not_shown_before_they_are_committed() -> None:
    with pytest.raises(kl.UsageError, match="shows results before they are committed"):
        kl.ParallelConsumer(pipeline()).stream()


def test_a_transaction_is_committed_more_often_than_offsets() -> None:
    assert pipeline().commit_interval_s == 0.1
    assert pipeline(commit=kl.Commit(interval_ms=700)).commit_interval_s == 0.7
    assert pipeline(delivery="at_least_once").commit_interval_s == 5


def test_the_id_is_the_static_members_or_a_new_one() -> None:
    assert transactional_id(pipeline(kafka=KAFKA | {"group.instance.id": "lane-3"})) == "g-lane-3"
    made = {transactional_id(pipeline(delivery=kl.Transactional("mine"))) for _ in range(3)}
    assert len(made) == 3
    assert all(one.startswith("mine-") for one in made)


def test_the_timeout_of_transactions_can_be_chosen() -> None:
    assert transactional_settings(KAFKA, None)["transaction.timeout.ms"] == 10_000
    assert transactional_settings(KAFKA | {"transaction.timeout.ms": 5}, None)["transaction.timeout.ms"] == 5
