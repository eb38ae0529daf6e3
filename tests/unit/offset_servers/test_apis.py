"""What becomes of each API of Apache Kafka 4.4.0 at an offset server: none is left out by oversight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from keylane.broker.dispatch import load_apis
from keylane.offset_servers.apis import LIST_TRANSACTIONS, PASSED_ON, passed_on, served
from kit import kafka_apis

NEWEST = 99
OF_KAFKA = set(kafka_apis.OF_KAFKA)
NOT_OFFERED = {
    25: "offsets in transactions: Kafka's coordinator marks their end in its own store",
    27: "a transaction that hangs is ended at the brokers themselves",
    28: "as 25",
    34: "disks are the brokers' own",
    35: "disks are the brokers' own",
    38: "delegation tokens are the brokers' own",
    39: "delegation tokens are the brokers' own",
    40: "delegation tokens are the brokers' own",
    41: "delegation tokens are the brokers' own",
    43: "leaders are the brokers' own",
    45: "replicas are the brokers' own",
    46: "replicas are the brokers' own",
    48: "quotas are the brokers' own",
    49: "quotas are the brokers' own",
    50: "users are the brokers' own",
    51: "users are the brokers' own",
    55: "the quorum is the brokers' own",
    57: "features are the brokers' own",
    64: "brokers are taken out at the brokers themselves",
    74: "metrics and listed configs are the brokers' own",
    80: "the quorum is the brokers' own",
    81: "the quorum is the brokers' own",
    **dict.fromkeys((76, 77, 78, 79, *range(83, 88), 90, 91, 92), "share groups are the brokers' own"),
    **dict.fromkeys((88, 89, 93, 94), "groups of Kafka Streams are the brokers' own"),
}


def offered(*, is_pair: bool) -> set[int]:
    passed = passed_on(dict.fromkeys(OF_KAFKA, (0, NEWEST)), ("here", 1), tuple, "hidden")
    return {*passed, *served(cast("Any", SimpleNamespace()), passed, is_pair=is_pair)} & OF_KAFKA


def test_each_api_is_offered_or_left_out_for_a_reason() -> None:
    for is_pair in (False, True):
        assert offered(is_pair=is_pair) == OF_KAFKA - NOT_OFFERED.keys()


def test_what_is_passed_on_is_named_as_the_broker_names_it() -> None:
    known = load_apis()
    assert {key: known[key].name for key in PASSED_ON} == {key: name for key, (name, _) in PASSED_ON.items()}


def test_transactions_are_listed_by_the_pairs_alone() -> None:
    passed = passed_on(dict.fromkeys(OF_KAFKA, (0, NEWEST)), ("here", 1), tuple, "hidden")
    assert LIST_TRANSACTIONS in served(cast("Any", SimpleNamespace()), passed, is_pair=False), "a server has none"
    assert LIST_TRANSACTIONS not in served(cast("Any", SimpleNamespace()), passed, is_pair=True), "its brokers have"
