from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compat import outside, report
from compat.results import Outcome, check, until

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_has_every_failure_and_the_reasons_of_what_is_excluded(tmp_path: Path) -> None:
    found = report.read(tmp_path / "none.json")
    outcomes = [Outcome("a", "passed"), Outcome("b", "failed", "why"), Outcome("c", "excluded", "ACLs")]
    report.add(found, "suite", "1.2", report.EMBEDDED, outcomes)
    report.add(
        found, "suite", "1.2", report.APACHE, [Outcome("b", "failed", "other"), Outcome("c", "excluded", "ACLs")]
    )
    report.add(found, "ours", "1", report.EMBEDDED, [Outcome("a", "passed")])
    found["other"] = {"version": "3", "skipped": "no tool"}
    path = tmp_path / "out" / "compat.json"
    report.write(path, found)
    text = report.markdown(report.read(path))
    assert "| suite | 1.2 | 1 | 1 | 1 | 50% | 0 | 1 | 1 |" in text
    assert "| ours | 1 | 1 | 0 | 0 | 100% | not run |  |  |" in text
    assert "- **failed** `b`: why" in text
    assert "- **failed on Apache Kafka** `b`: other" in text
    assert text.count("ACLs: `c`") == 1, "what is excluded on both is told once"
    assert "not run: no tool" in text


def test_a_newer_version_forgets_what_the_one_before_did() -> None:
    found: report.Found = {}
    for version in ("1", "2"):
        broker = report.APACHE if version == "1" else report.EMBEDDED
        report.add(found, "suite", version, broker, [Outcome("a", "passed")])
    assert list(found["suite"]["outcomes"]) == [report.EMBEDDED]


def test_what_a_test_raises_is_its_failure() -> None:
    assert check("fine", lambda: None) == Outcome("fine", "passed")
    assert check("bad", lambda: until(lambda: False, "it", 0)) == Outcome(
        "bad", "failed", "TimeoutError: it: not within 0 s"
    )


def test_of_tests_in_go_the_parts_count_and_what_hangs_has_failed() -> None:
    assert outside.go_outcome("TestA/b", "pass", "") == Outcome("TestA/b", "passed")
    assert outside.go_outcome("TestA", "skip", "=== RUN TestA\n    no broker\n").verdict == "excluded"
    assert outside.go_outcome("TestA", "run", "") == Outcome("TestA", "failed", "no end")


@pytest.mark.parametrize("name", ["test_create_describe_delete_acls", "test_alter_replica_log_dirs"])
def test_exclusions_go_by_a_piece_of_the_name(name: str) -> None:
    assert outside.excluded(name, outside.KAFKA_PYTHON_EXCLUDED)
    assert outside.excluded("test_consumer", outside.KAFKA_PYTHON_EXCLUDED) is None
