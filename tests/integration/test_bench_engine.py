"""The harness of `make bench-engine` on the embedded broker: every contestant of ours runs every record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import engine
import pytest
from engine import pace, placement, report
from engine.contest import ASYNCIO, THREADS, Contest, keylane_and_peer
from engine.rows import Ordering, Row, Topic, rows

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("bench") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def contest(broker: BrokerProcess) -> Iterator[Contest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(engine.__file__).parents[1]))
        with Contest(broker.bootstrap, keylane_and_peer(broker.bootstrap, with_jvm=False)) as made:
            yield made


def played(contest: Contest, ordering: Ordering, topic: Topic, name: str) -> Row:
    row = Row(name, ordering, 8, topic, topic)
    contest.fill([topic])
    contest.fill([topic])  # nothing to do the second time
    return row


def test_rows_are_run_whole_and_no_faster_than_their_limit(contest: Contest, tmp_path: Path) -> None:
    sleeping = played(contest, "key", Topic(200, 5, 1, sleeping=True), "key-5/16")
    standings = contest.play(sleeping, 2, lambda *_: None)
    assert set(standings) == {THREADS, ASYNCIO}
    for standing in standings.values():
        assert [result.records for result in standing.results] == [200, 200]
        assert standing.times_the_limit >= 1
        assert all(result.from_subscribe_s > result.from_first_s for result in standing.results)

    idle = played(contest, "unordered", Topic(1_000, 5, 2, sleeping=False), "noop-unordered/16")
    found = report.load(tmp_path / "engine.json")
    report.note_row(found, sleeping, standings)
    report.save(tmp_path / "engine.json", found)
    found = report.load(tmp_path / "engine.json")
    report.note_row(found, idle, contest.play(idle, 1, lambda *_: None))
    [(row, again)] = report.known(found, "wait")
    assert row.name == "key-5/16"
    assert again == standings, "results survive their file"
    table = report.markdown(found)
    assert table.count("| key-5/16 | ") == table.count("| noop-unordered/16 | ") == 1
    report.draw(tmp_path / "engine.png", found)
    assert (tmp_path / "engine.png").read_bytes().startswith(b"\x89PNG")


def test_a_backlog_is_polled_before_its_handlers_go_on(contest: Contest) -> None:
    topic = Topic(3_000, 50, 1, sleeping=False)
    row = Row("cost-backlog-10000/16", "key", 8, topic, topic, "threads", backlog=3_000)
    contest.fill([topic])
    standings = contest.play(row, 1, lambda *_: None)
    assert set(standings) == {THREADS}
    [result] = standings[THREADS].results
    assert (result.records, result.from_first_s < result.from_subscribe_s) == (3_000, True)


def test_records_are_appended_at_a_pace_and_their_ages_measured(
    contest: Contest, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SECONDS", 1)
    found = pace.measure(contest, broker.bootstrap, 1)
    for [(half, most)] in found.values():
        assert 0 < half <= most < 10_000
    assert pace.table(found)["markdown"].count("\n") == 4


def test_a_run_that_fails_is_told_with_its_cause(contest: Contest) -> None:
    topic = Topic(10, 5, 1, sleeping=False)  # never filled
    with pytest.raises(RuntimeError, match=r"keylane threads on key/8: error: .*does not exist"):
        contest.play(Row("key/8", "key", 8, topic, topic), 1, lambda *_: None)


def test_rows_have_a_section() -> None:
    assert {row.section for row in rows(["*"], quick=False)} == {"wait", "noop", "cost"}


@pytest.mark.full
@pytest.mark.usefixtures("contest")  # for its path of modules
def test_one_processor_is_shown_beside_all(broker: BrokerProcess) -> None:
    rows_of_each_kind = [
        Row(f"key-5/{number}", "key", 8, topic, topic)
        for number, topic in enumerate((Topic(200, 5, 1, sleeping=True), Topic(1_000, 5, 2, sleeping=False)))
    ]
    table = placement.measure(broker.bootstrap, 1, rows_of_each_kind)["markdown"].splitlines()
    assert table[0] == "| row | threads, one | threads, all | asyncio, one | asyncio, all |"
    assert [line.count(" µs") for line in table[2:]] == [4, 4]
    assert [(line.count(" s · "), line.count("/s · ")) for line in table[2:]] == [(4, 0), (0, 4)]
