"""What `make bench-engine` measures: the rows of the table, the limit of a row, and the same work for everyone."""

from __future__ import annotations

from collections import Counter

import pytest
from engine.rows import KEYS, MAX_SLEEP_US, ZIPF_EXPONENT, Row, Topic, rows


def row(name: str) -> Row:
    (found,) = rows([name], quick=False)
    return found


def test_the_rows_are_those_of_the_table_at_both_concurrencies() -> None:
    names = {one.name for one in rows(["*/16"], quick=False)}
    assert {"partition/16", "unordered/16", "noop-key/16"} <= names
    assert {f"key-{keys}/16" for keys in KEYS} <= names
    waiting = {one.name.split("/")[0] for one in rows(["*/16"], quick=False) if one.contestants == "all"}
    assert {one.name.split("/")[0] for one in rows(["*/100"], quick=True)} == waiting
    assert rows(["nothing"], quick=False) == []


def test_the_limit_is_the_work_side_by_side_or_the_heaviest_lane() -> None:
    assert row("unordered/16").limit_s(sum_s=16, heaviest_s=5) == 1
    assert row("key-2/16").limit_s(sum_s=16, heaviest_s=8) == 8
    assert row("key-1000/16").limit_s(sum_s=16, heaviest_s=0.1) == 1
    assert row("partition/100").limit_s(sum_s=25, heaviest_s=25) == 25


def test_a_topics_records_are_the_same_each_time_and_spread_as_named() -> None:
    even = Topic(1_000, 20, 1, sleeping=True)
    assert list(even.content()) == list(even.content())
    assert set(Counter(key for key, _, _ in even.content()).values()) == {50}
    sleeps = [int(value) for _, value, _ in even.content()]
    assert 0 <= min(sleeps) < max(sleeps) < MAX_SLEEP_US
    assert sum(sleeps) / len(sleeps) == pytest.approx(MAX_SLEEP_US / 2, rel=0.1)

    skewed = Counter(key for key, _, _ in Topic(10_000, 1_000, 1, sleeping=True, zipf=True).content())
    assert skewed[b"k0"] == pytest.approx(2**ZIPF_EXPONENT * skewed[b"k1"], rel=0.2)

    fixed = Topic(10, 5, 1, sleeping=True, service_us=50_000)
    assert {value for _, value, _ in fixed.content()} == {b"50000"}
    wide = Counter(partition for _, _, partition in Topic(1_000, 1, 100, sleeping=False).content())
    assert set(wide.values()) == {10}, "fewer keys than partitions: records are spread in turn"


def test_records_of_a_key_share_a_partition() -> None:
    places = {(key, partition) for key, _, partition in Topic(1_000, 50, 4, sleeping=False).content()}
    assert len(places) == 50
    assert {partition for _, partition in places} == {0, 1, 2, 3}
