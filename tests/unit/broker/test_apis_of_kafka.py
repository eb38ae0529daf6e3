"""Each API of Apache Kafka 4.4.0, in its versions, is offered or left out for a reason."""

from __future__ import annotations

from keylane.broker.dispatch import load_apis
from keylane.broker.handlers.api_versions import TOLD_FROM
from kit.kafka_apis import NOT_ITS_OLDEST, NOT_OFFERED, OF_KAFKA, OWN

OFFERED = {key: (TOLD_FROM.get(key, api.min_version), api.max_version) for key, api in load_apis().items()}


def test_each_api_is_offered_or_left_out_for_a_reason() -> None:
    assert OFFERED.keys() - {OWN} == OF_KAFKA.keys() - NOT_OFFERED.keys()
    assert NOT_OFFERED.keys() <= OF_KAFKA.keys()


def test_each_has_kafkas_versions() -> None:
    assert {key: newest for key, (_, newest) in OFFERED.items() if key != OWN} == {
        key: newest for key, (_, newest) in OF_KAFKA.items() if key not in NOT_OFFERED
    }
    assert {key for key, (oldest, _) in OFFERED.items() if key != OWN and oldest != OF_KAFKA[key][0]} == {
        *NOT_ITS_OLDEST
    }
