"""Records of steps: what is written is read back, nothing that stands there breaks the reader, and trimming the log
loses nothing that is needed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.delivery.steps.formats import (
    Entry,
    Forgotten,
    Mark,
    Piece,
    RecordIdentity,
    Step,
    StepFormatError,
    decode,
    encode,
    pieces_of,
)
from keylane.delivery.steps.table import StepTable

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
INT64 = st.integers(0, 2**63 - 1)
RECORDS = st.builds(RecordIdentity, TEXTS, st.integers(0, 2**31 - 1), INT64, INT64, st.just(""))
STEPS = st.builds(Step, RECORDS, TEXTS, TEXTS)
COUNTS = st.integers(1, 2**32 - 1)
PIECES = COUNTS.flatmap(
    lambda count: st.builds(Piece, STEPS, st.integers(0, count - 1), st.just(count), st.binary(max_size=50))
)
ENTRIES = st.one_of(st.builds(Mark, TEXTS), PIECES, st.builds(Forgotten, STEPS))


@given(ENTRIES)
def test_what_is_written_is_read_back(entry: Entry) -> None:
    assert decode(*encode(entry)) == entry


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=20))
def test_any_bytes_are_read_or_refused(key: bytes | None, value: bytes | None) -> None:
    read_or_refused(key, value)


@given(ENTRIES, st.data())
def test_so_is_what_was_damaged(entry: Entry, data: st.DataObject) -> None:
    key, value = encode(entry)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(key))] * 2)))
    middle, behind = data.draw(st.binary(max_size=4)), data.draw(st.binary(max_size=4))
    read_or_refused(key[:start] + middle + key[end:], value + behind)


def read_or_refused(key: bytes | None, value: bytes | None) -> None:
    with suppress(StepFormatError):
        entry = decode(key, value)
        assert decode(*encode(entry)) == entry


@given(STEPS, st.binary(max_size=100), st.integers(1, 30))
def test_an_answer_is_its_pieces(step: Step, answer: bytes, most_bytes: int) -> None:
    pieces = pieces_of(step, answer, most_bytes)
    assert b"".join(one.data for one in pieces) == answer
    assert all(len(one.data) <= most_bytes for one in pieces)
    table = StepTable(*step.record[:2])
    for offset, piece in enumerate(pieces):
        assert table.answer(step) is None
        table.take(offset, Producer(1, 0), *encode(piece))
    assert table.answer(step) == answer


# --- a log of several owners ---

OWNERS = [Producer(1, epoch) for epoch in range(3)]
SOME = [Step(RecordIdentity("id", 0, offset, 7), name, "") for offset in (4, 5, 6) for name in ("ask", "bill")]


class Written(NamedTuple):
    producer: Producer
    key: bytes
    value: bytes


@st.composite
def logs(draw: st.DrawFn) -> list[Written]:
    """Owners one after the other, each behind its mark, of which earlier ones may write late; and what others write."""
    found: list[Written] = []
    for owner in OWNERS:
        found.append(Written(owner, *encode(Mark("somebody"))))
        for _ in range(draw(st.integers(0, 8))):
            producer = draw(st.sampled_from([owner, owner, owner, *OWNERS]))
            step = draw(st.sampled_from(SOME))
            kind = draw(st.sampled_from(["answer", "answer", "piece", "forgotten", "junk"]))
            if kind == "junk":
                found.append(Written(Producer(-1, -1), draw(st.binary(max_size=9)), b""))
            elif kind == "forgotten":
                found.append(Written(producer, *encode(Forgotten(step))))
            else:
                pieces = pieces_of(step, draw(st.binary(min_size=1, max_size=3)), 1)
                some = pieces if kind == "answer" else pieces[:1]
                found += [Written(producer, *encode(piece)) for piece in some]
    return found


def table_of(log: Sequence[Written], first: int = 0) -> StepTable:
    table = StepTable("id", 0)
    for offset, one in enumerate(log[first:], first):
        table.take(offset, *one)
    return table


def answers(table: StepTable) -> dict[Step, bytes]:
    return {step: answer for step in SOME if (answer := table.answer(step)) is not None}


@given(logs(), st.sets(st.sampled_from([4, 5, 6])))
def test_a_log_that_is_trimmed_to_what_is_needed_says_the_same(log: list[Written], complete: set[int]) -> None:
    table = table_of(log)
    table.complete(complete)
    first = table.first_needed
    trimmed = table_of(log, len(log) if first is None else first)
    trimmed.complete(complete)
    assert answers(trimmed) == answers(table)
    assert trimmed.first_needed == first
    assert all(step.record.offset not in complete for step in answers(table))


@given(logs())
def test_an_answer_is_of_one_owner_and_stands_there_whole_and_last(log: list[Written]) -> None:
    for step, answer in answers(table_of(log)).items():
        found = None
        for owner, since, until in spans(log):
            data = b""
            for one in log[since:until]:
                if one.producer != owner:
                    continue
                entry = decode(one.key, one.value)
                if entry == Forgotten(step):
                    found, data = None, b""
                elif isinstance(entry, Piece) and entry.step == step:
                    data = entry.data if entry.number == 0 else data + entry.data
                    found = data if len(data) == entry.pieces else found
        assert found == answer


def spans(log: Sequence[Written]) -> list[tuple[Producer, int, int]]:
    """By owner, where its mark is, and where the next one's."""
    marks = [at for at, one in enumerate(log) if one.value == b"somebody"]
    return [(log[at].producer, at, until) for at, until in zip(marks, [*marks[1:], len(log)], strict=True)]
