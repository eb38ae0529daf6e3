"""The bench that holds this broker against an earlier one of its own."""

from __future__ import annotations

from pathlib import Path

import earlier
import pytest
from broker.speed import Contest, Row
from contests import OURS

import keylane


def test_both_brokers_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(earlier.__file__).parent))
    sources = Path(keylane.__file__).parents[1]
    row = Row("produce", "produce", 100, peers=(earlier.EARLIER,))

    with Contest(
        tmp_path,
        lambda stack: {earlier.EARLIER: stack.enter_context(earlier.earlier_broker(sources, tmp_path / "earlier"))},
    ) as contest:
        runs = contest.play(row, 1, 0.2, lambda *_: None)
    assert sorted(runs) == [earlier.EARLIER, OURS]
    assert all(one["per_s"] > 0 for each in runs.values() for one in each)


def test_a_row_has_medians_and_their_ratio() -> None:
    runs = {OURS: [{"per_s": one} for one in (90.0, 1.0, 100.0)], earlier.EARLIER: [{"per_s": 1_200.0}]}
    assert earlier.line("produce", runs).split() == ["produce", "90", "1,200", "0.075"]


def test_a_commit_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--commit no-such: .*: give a commit of this repository"):
        earlier.sources("no-such", tmp_path)
