"""The harness of `make bench-engine` on the embedded broker: every contestant of ours runs every record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import engine
import pytest
from engine import report
from engine.contest import ASYNCIO, THREADS, Contest
from engine.rows import Ordering, Row, Topic

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contest]:
    with (
        BrokerProcess(tmp_path_factory.mktemp("bench") / "data") as broker,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPATH", str(Path(engine.__file__).parents[1]))
        with Contest(broker.bootstrap, with_jvm=False) as made:
            yield made


def played(contest: Contest, ordering: Ordering, topic: Topic) -> Row:
    row = Row(f"{ordering}/8", ordering, 8, topic, topic)
    contest.fill([topic])
    contest.fill([topic])  # nothing to do the second time
    return row


def test_rows_are_run_whole_and_no_faster_than_their_limit(contest: Contest, tmp_path: Path) -> None:
    sleeping = played(contest, "key", Topic(200, 5, 1, sleeping=True))
    standings = contest.play(sleeping, 2, lambda *_: None)
    assert set(standings) == {THREADS, ASYNCIO}
    for standing in standings.values():
        assert [result.records for result in standing.results] == [200, 200]
        assert standing.times_the_limit >= 1
        assert all(result.from_subscribe_s > result.from_first_s for result in standing.results)

    idle = played(contest, "unordered", Topic(1_000, 5, 2, sleeping=False))
    found = [(sleeping, standings), (idle, contest.play(idle, 1, lambda *_: None))]
    assert [column.header for column in report.table(found).columns] == ["row", "limit", THREADS, ASYNCIO]
    assert report.markdown(found).count("\n") == 4
    report.write_json(tmp_path / "bench.json", found, report.environment("embedded"))
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["rows"][0]["contestants"][THREADS][0]["records"] == 200
    report.draw(tmp_path / "bench.png", found)
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_fails_is_told_with_its_cause(contest: Contest) -> None:
    topic = Topic(10, 5, 1, sleeping=False)  # never filled
    with pytest.raises(RuntimeError, match=r"keylane threads on key/8: error: .*does not exist"):
        contest.play(Row("key/8", "key", 8, topic, topic), 1, lambda *_: None)
