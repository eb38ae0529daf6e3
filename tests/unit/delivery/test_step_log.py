"""The owner of a log of steps: fences who had it before, reads what is kept, and keeps on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.coordinator.replicated.journal import Refused
from keylane.delivery.steps import log as step_log
from keylane.delivery.steps.formats import Forgotten, encode
from keylane.wire.batches import NewRecord, encode_batch
from kit.step_world import NO_ANSWER, Broker, Connection, Owner, step_of

if TYPE_CHECKING:
    from keylane.coordinator.transactions.transactional_ids import Producer

ASK, BILL = step_of(4), step_of(4, "bill")


def opened(broker: Broker) -> Owner:
    owner = Owner(broker)
    owner.run()
    assert owner.is_open
    return owner


def test_the_next_owner_has_what_was_acknowledged_to_the_one_before() -> None:
    broker = Broker()
    first = opened(broker)
    assert first.steps.answer(ASK) is None
    first.keep(ASK, b"an answer in pieces")
    assert first.kept == {}
    first.run()
    assert first.kept == {ASK: b"an answer in pieces"}
    assert first.steps.answer(ASK) == b"an answer in pieces"
    assert opened(broker).steps.answer(ASK) == b"an answer in pieces"


def test_nothing_is_acknowledged_to_an_owner_of_before_once_the_next_one_has_read() -> None:
    """It was frozen, and wakes with an answer."""
    broker = Broker()
    old = opened(broker)
    new = opened(broker)
    old.keep(ASK, b"late")
    old.run()
    assert old.kept == {}
    assert old.steps.lost is not None
    assert new.steps.answer(ASK) is None
    new.keep(ASK, b"answer")
    new.run()
    assert opened(broker).steps.answer(ASK) == b"answer"


@pytest.mark.parametrize("acknowledged", range(5))
def test_all_pieces_of_an_answer_are_appended_again_behind_another_mark(acknowledged: int) -> None:
    """The connection ends when some of them have been acknowledged."""
    broker = Broker()
    owner = opened(broker)
    owner.keep(ASK, b"an answer in")  # four pieces
    for _ in range(2 * acknowledged):
        owner.connection.go_on()
    owner.connection.break_off()
    owner.run()
    assert owner.kept == {ASK: b"an answer in"}
    assert opened(broker).steps.answer(ASK) == b"an answer in"


def test_what_another_owner_may_have_read_is_not_deleted_as_of_no_use() -> None:
    """An answer comes to the log without an acknowledgement, and another owner reads it before its writer knows."""
    broker = Broker()
    old = opened(broker)
    old.keep(ASK, b"an answer")
    old.connection.break_off()
    while broker.late:
        broker.append(broker.late.popleft())
    while old.steps._producer != broker.producer or not old.steps._is_marked:
        old.connection.go_on()
    old.run(2)
    new = opened(broker)
    assert new.steps.answer(ASK) == b"an answer"
    broker.delete_below(old.steps.trim())
    assert opened(broker).steps.answer(ASK) == b"an answer"


@pytest.mark.parametrize("steps_before", range(5))
def test_whatever_of_its_opening_is_over_when_the_owner_of_before_appends(steps_before: int) -> None:
    """Each is either read by the new owner or not acknowledged to the old one."""
    broker = Broker()
    old = opened(broker)
    new = Owner(broker)
    new.run(steps_before)
    old.keep(ASK, b"x")
    old.run()
    new.run()
    assert new.is_open
    assert new.steps.answer(ASK) == old.kept.get(ASK)


def test_an_answer_whose_acknowledgement_does_not_come_is_appended_again_in_a_new_epoch() -> None:
    broker = Broker()
    owner = opened(broker)
    owner.keep(ASK, b"first")
    owner.connection.deliver()  # and the rest of it never gets there
    owner.keep(BILL, b"bill")
    owner.connection.break_off()
    owner.run()
    assert owner.kept == {ASK: b"first", BILL: b"bill"}
    assert broker.producer.epoch == 1
    later = opened(broker)
    assert (later.steps.answer(ASK), later.steps.answer(BILL)) == (b"first", b"bill")


def test_it_is_not_where_another_owner_has_come_meanwhile() -> None:
    broker = Broker()
    owner = opened(broker)
    owner.keep(ASK, b"first")
    new = opened(broker)
    owner.connection.break_off()
    owner.run()
    assert owner.kept == {}
    assert owner.steps.lost is not None
    assert new.steps.answer(ASK) is None


def test_a_question_without_an_answer_is_asked_again() -> None:
    class Silent(Connection):
        left = 2

        def init(self, expected: Producer | None, told: object) -> None:
            super().init(expected, self.silent(told))  # type: ignore[arg-type]

        def read(self, offset: int, told: object) -> None:
            super().read(offset, self.silent(told))  # type: ignore[arg-type]

        def silent(self, told: object) -> object:
            if not Silent.left:
                return told
            Silent.left -= 1
            return lambda _: told(NO_ANSWER)  # type: ignore[operator]

    broker = Broker()
    opened(broker).keep(ASK, b"x")
    told: list[object] = []
    connections: list[Silent] = []

    def connect() -> Silent:
        connections.append(Silent(broker))
        return connections[-1]

    steps = step_log.StepLog(connect, broker.table(0), "somebody", lambda: 0, 10)
    steps.open(told.append)
    while connections[-1].go_on():
        pass
    assert (told, Silent.left) == ([None], 0)


def test_a_batch_that_is_refused_for_another_reason_is_tried_once_more() -> None:
    """As where the broker has forgotten the producer; what is refused for good ends the attempt, with the reason."""

    class Refusing(Connection):
        refusals = 1

        def append(self, batch: bytes, told: object) -> None:
            if len(batch) > 150 and Refusing.refusals:
                Refusing.refusals -= 1
                super().append(batch, lambda _: told(Refused("MESSAGE_TOO_LARGE")))  # type: ignore[operator]
            else:
                super().append(batch, told)  # type: ignore[arg-type]

    broker = Broker()
    owner = Owner(broker)

    def connect() -> Connection:
        owner.connection = Refusing(broker)
        return owner.connection

    owner.steps = steps = step_log.StepLog(connect, broker.table(0), "somebody", lambda: 0, 1_000)
    steps.open(lambda _: None)
    owner.run()
    owner.keep(ASK, b"x" * 100)
    owner.run()
    assert owner.kept == {ASK: b"x" * 100}
    Refusing.refusals = 2
    owner.keep(BILL, b"x" * 100)
    owner.run()
    assert steps.lost is not None
    assert steps.lost.reason == "MESSAGE_TOO_LARGE"


def test_who_is_not_sure_asks_whether_it_is_the_owner_still() -> None:
    broker = Broker()
    old = opened(broker)
    told: list[object] = []
    old.steps.confirm(told.append)
    old.run()
    assert told == [None]
    new = opened(broker)
    old.steps.confirm(told.append)
    old.run()
    assert told[1:] == [old.steps.lost]
    assert old.steps.lost is not None
    assert new.steps.lost is None


def test_what_is_forgotten_is_so_for_the_next_owner() -> None:
    broker = Broker()
    owner = opened(broker)
    owner.keep(ASK, b"first")
    told: list[object] = []
    owner.steps.forget(ASK, told.append)
    owner.run()
    assert told == [None]
    assert (owner.steps.answer(ASK), opened(broker).steps.answer(ASK)) == (None, None)


def test_what_complete_records_leave_is_trimmed_and_what_is_old_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log, "SPARE_RECORDS", 20)
    broker = Broker()
    owner = opened(broker)
    owner.keep(ASK, b"old")
    for offset in range(5, 55):
        owner.keep(step_of(offset), b"x")
    owner.run()
    owner.steps.complete(range(5, 55))
    assert owner.steps.trim() == 1, "the one that waits is there, and is copied"
    owner.run()
    broker.delete_below(owner.steps.trim())
    assert (broker.start, len(broker.batches)) == (52, 53)
    assert opened(broker).steps.answer(ASK) == b"old"
    owner.steps.complete([4])
    assert owner.steps.trim() == 53


def test_whoever_closes_has_lost_what_is_not_acknowledged() -> None:
    broker = Broker()
    owner = opened(broker)
    told: list[object] = []
    owner.steps.keep(ASK, b"x", told.append)
    owner.steps.close()
    owner.steps.keep(BILL, b"x", told.append)
    owner.steps.open(told.append)
    assert told == [owner.steps.lost] * 3
    assert owner.steps.trim() == 0


@pytest.mark.parametrize("damage", ["checksum", "a newer release"])
def test_a_log_that_cannot_be_read_is_not_opened(damage: str) -> None:
    broker = Broker()
    opened(broker).steps.close()
    key, value = encode(Forgotten(ASK))
    batch = encode_batch(
        [NewRecord(b"\x09" + key[1:], value)], timestamp_ms=0, base_offset=1, producer_id=1, producer_epoch=0
    )
    broker.batches.append(batch if damage == "a newer release" else batch[:-1] + b"\1")
    owner = Owner(broker)
    owner.run()
    assert not owner.is_open
    assert owner.steps.lost is not None
    assert (
        "version 9" if damage == "a newer release" else "checksum of the batch at offset 1"
    ) in owner.steps.lost.reason
