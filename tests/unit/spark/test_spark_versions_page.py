"""The table of docs/spark-versions.md: what was run takes the place of what was there, and what was not run stays."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pages import marks

from kit.spark_versions import HEAD, PARTS, Run, merged


def page(*rows: str) -> str:
    begin, end = marks("spark-versions")
    return "\n".join([begin, f"| {' | '.join(HEAD)} |", *rows, end])


def test_parts_that_were_run_are_put_into_their_row_and_the_others_stay() -> None:
    before = page(f"| 4.0.5 | 3.11 | 17 |{' failed |' * len(PARTS)}")
    runs = [
        Run("4.2.1", "3.12", "21", {"`acknowledged`": "passed"}),
        Run("4.0.5", "3.11", "17", {"lanes": "passed", "refusals": "–"}),
    ]
    _, _, older, newer = merged(before, runs).splitlines()
    assert older == f"| 4.0.5 | 3.11 | 17 | passed |{' failed |' * (len(PARTS) - 2)} – |"
    assert newer.count("not run") == len(PARTS) - 1
    assert dict(zip(HEAD, newer.strip("| ").split(" | "), strict=True))["`acknowledged`"] == "passed"


def test_a_run_has_passed_when_no_part_of_it_failed_and_one_was_there() -> None:
    assert Run("4.0.5", "3.11", "17", {"lanes": "passed", "refusals": "–"}).passed
    assert not Run("4.0.5", "3.11", "17", {"lanes": "–"}).passed
    assert not Run("4.0.5", "3.11", "17", {"lanes": "passed", "refusals": "not run"}).passed
