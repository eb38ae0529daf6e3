"""A topic is deleted and made anew under its name while a member reads it, on either broker: the new one is longer by
the time that the member goes on, so that its position in the old one is within it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.kafka import topic_ids
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = 20, 40


class Made:
    """A topic with records, and what was done with them."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.stage = Stage(bootstrap, name)
        self.seen: list[tuple[bytes | None, int]] = []
        self.make(b"old", OLD)

    def make(self, key: bytes, count: int) -> None:
        self.stage.create(1)
        self.stage.fill((key, 0) for _ in range(count))

    def anew(self) -> None:
        self.stage.admin.delete_topics([self.stage.topic])
        until(lambda: self.stage.topic not in self.stage.admin.topics(), "the topic is gone")
        self.make(b"new", NEW)

    def ends_by_name(self, member: ThreadMember) -> None:
        until(lambda: self.seen.count((b"old", OLD - 1)) == 1 and self.stage.all_is_committed(), "all is committed")
        self.anew()
        with pytest.raises(kl.errors.PeerError, match=r"made anew"):
            member.end()

    def new_offsets(self) -> list[int]:
        return sorted(offset for key, offset in self.seen if key == b"new")


@pytest.fixture(autouse=True)
def _asks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ids, "FRESH_S", 0.0)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "transactional"])
def test_nothing_is_committed_in_it_and_the_next_start_reads_it_all(bootstrap: str, delivery: Any) -> None:
    made = Made(bootstrap, f"anew-{delivery}")

    def see(record: kl.Record) -> None:
        made.seen.append((record.key, record.offset))

    commit = {} if delivery == "transactional" else {"commit": kl.Commit(interval_ms=100)}
    made.ends_by_name(ThreadMember(made.stage.pipeline(see, delivery=delivery, **commit), "reader"))
    made.seen.clear()
    made.stage.run(see, delivery=delivery)
    assert made.new_offsets() == list(range(NEW))


def test_under_exactly_once_what_it_processed_of_it_is_not_processed_again(bootstrap: str, tmp_path: Path) -> None:
    made, path = Made(bootstrap, "anew-exactly"), str(tmp_path / "effects.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effects (at integer)")

    def effect(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("INSERT INTO effects VALUES (?)", (record.offset,))
        made.seen.append((record.key, record.offset))

    made.ends_by_name(ThreadMember(made.stage.pipeline(effect, delivery=kl.ExactlyOnce(path)), "reader"))
    done = made.new_offsets()
    if not done:  # a broker whose leader epochs rise was believed before the first of them
        return
    with pytest.raises(kl.errors.StoreError, match=rf"{len(done)} records of partition 0, from offset {OLD} on"):
        made.stage.run(effect, delivery=kl.ExactlyOnce(path))
    assert made.new_offsets() == done
    made.stage.run(effect, delivery=kl.ExactlyOnce(path, unseen_commits="rewind"))
    assert made.new_offsets() == sorted([*range(NEW), *done])
