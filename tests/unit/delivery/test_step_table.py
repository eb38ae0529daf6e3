"""What a log of steps adds up to: who is believed, and what is kept of whom."""

from __future__ import annotations

import pytest

from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.delivery.steps.formats import (
    Entry,
    Forgotten,
    Mark,
    RecordIdentity,
    Step,
    StepFormatError,
    encode,
    pieces_of,
)
from keylane.delivery.steps.table import StepTable

FIRST, SECOND = Producer(9, 0), Producer(9, 1)
ASK = Step(RecordIdentity("id", 3, 40, 7), "ask", "")


class Log:
    """A table, and the log's end."""

    def __init__(self) -> None:
        self.table = StepTable("id", 3)
        self.end = 0

    def append(self, producer: Producer, *entries: Entry) -> None:
        for entry in entries:
            self.table.take(self.end, producer, *encode(entry))
            self.end += 1


def test_what_an_earlier_owner_appends_behind_the_mark_of_a_later_one_is_not_believed() -> None:
    log = Log()
    log.append(FIRST, Mark("one"))
    log.append(SECOND, Mark("other"))
    log.append(FIRST, *pieces_of(ASK, b"late", 10))
    assert log.table.answer(ASK) is None
    assert log.table.disbelieved == 1
    log.append(SECOND, *pieces_of(ASK, b"answer", 10))
    assert log.table.answer(ASK) == b"answer"


def test_a_copy_at_the_end_of_the_log_takes_the_place_of_the_first() -> None:
    log = Log()
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"abcd", 2))
    log.append(SECOND, Mark("other"), *pieces_of(ASK, b"abcd", 3)[:1])
    assert log.table.first_needed == 1
    log.append(SECOND, *pieces_of(ASK, b"abcd", 3)[1:])
    assert (log.table.answer(ASK), log.table.first_needed) == (b"abcd", 4)


def test_what_lies_alone_in_a_long_log_is_to_be_copied() -> None:
    log = Log()
    steps = [ASK._replace(record=ASK.record._replace(offset=offset)) for offset in range(20)]
    log.append(FIRST, Mark("one"), *(pieces_of(step, b"x", 1)[0] for step in steps))
    log.table.complete(range(2, 16))
    assert log.table.old_steps(log.end, spare=20) == []
    assert log.table.old_steps(log.end, spare=6) == steps[:2]


def test_the_pieces_of_two_owners_are_not_put_together() -> None:
    log = Log()
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"abcd", 2)[:1])
    log.append(SECOND, Mark("other"), *pieces_of(ASK, b"1234", 2)[1:])
    assert log.table.answer(ASK) is None
    log.append(SECOND, *pieces_of(ASK, b"1234", 2))
    assert log.table.answer(ASK) == b"1234"


@pytest.mark.parametrize(
    "other",
    [
        ASK._replace(record=ASK.record._replace(topic_id="made anew")),
        ASK._replace(record=ASK.record._replace(checksum=8)),
        ASK._replace(record=ASK.record._replace(offset=41)),
        ASK._replace(record=ASK.record._replace(partition=4)),
        ASK._replace(name="bill"),
        ASK._replace(key="1"),
    ],
)
def test_another_record_or_step_has_none_of_its_answer(other: Step) -> None:
    log = Log()
    log.append(FIRST, Mark("one"), *pieces_of(other, b"of the other", 100))
    assert log.table.answer(ASK) is None


def test_a_mark_of_somebody_without_an_epoch_is_none() -> None:
    log = Log()
    log.append(Producer(-1, -1), Mark("a stranger"))
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"first", 10))
    log.append(Producer(-1, -1), Mark("a stranger"), Forgotten(ASK))
    log.append(FIRST, *pieces_of(ASK, b"second", 10))
    assert (log.table.answer(ASK), log.table.disbelieved) == (b"second", 3)


def test_a_step_is_forgotten_and_may_be_kept_anew() -> None:
    log = Log()
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"first", 10), Forgotten(ASK))
    assert log.table.answer(ASK) is None
    assert log.table.first_needed is None
    log.append(FIRST, *pieces_of(ASK, b"second", 10))
    assert log.table.answer(ASK) == b"second"


def test_complete_records_need_nothing_of_the_log() -> None:
    log = Log()
    later = ASK._replace(record=ASK.record._replace(offset=41))
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"abcd", 2), *pieces_of(later, b"x", 2))
    assert log.table.first_needed == 1
    assert list(log.table.steps_of(40)) == [ASK]
    log.table.complete([40])
    assert (log.table.answer(ASK), log.table.first_needed) == (None, 3)
    log.table.complete([41])
    assert log.table.first_needed is None


def test_steps_of_records_that_were_complete_before_are_not_kept() -> None:
    log = Log()
    log.table = StepTable("id", 3, (41).__gt__)
    later = ASK._replace(record=ASK.record._replace(offset=41))
    log.append(FIRST, Mark("one"), *pieces_of(ASK, b"x", 2), *pieces_of(later, b"x", 2))
    assert (log.table.answer(ASK), log.table.answer(later), log.table.first_needed) == (None, b"x", 2)


def test_what_somebody_else_wrote_is_passed_over_and_what_a_newer_release_wrote_is_not() -> None:
    log = Log()
    log.append(FIRST, Mark("one"))
    log.table.take(log.end, Producer(-1, -1), b"{}", None)
    assert log.table.disbelieved == 1
    key, value = encode(Forgotten(ASK))
    with pytest.raises(StepFormatError, match="version 2; this release reads version 1"):
        log.table.take(log.end, FIRST, b"\x02" + key[1:], value)
    with pytest.raises(StepFormatError, match="kind 9"):
        log.table.take(log.end, FIRST, key[:1] + b"\x09" + key[2:], value)
