"""Which letters count as back by the log of their group's commands: without a broker."""

from __future__ import annotations

from keylane.consumer.dead_letters import said_of
from keylane.consumer.passing import Passing
from keylane.desk.letters import Wanted
from keylane.desk.redrive import Redrive
from keylane.desk.redrive_in_group import Past, Replayed, _place_of
from keylane.kafka.membership import Replay
from keylane.operations.commands import Command
from keylane.operations.reports import Members
from keylane.operations.results import Result
from keylane.records import PlainMessage, Record

RECORD = "t:0@7"


def told(members: Members, *results: Result) -> Members:
    for one in results:
        members.take(one.key, one.value("g"), 0)
    return members


def test_a_letter_is_back_when_a_member_began_after_it_was_written_and_said_that_it_was_done() -> None:
    command = Command("c", "g", 1, 90, "ops", Replay((("t", 0, 7), ("t", 0, 8))))
    began, done = Result.of(command, "a", "accepted", 100), Result.of(command, "a", "done", 200, records=(RECORD,))
    past = Past.of([command], told(Members("g"), began, done))
    assert past.since(RECORD, 100) == Replayed(100, is_done=True)
    assert past.since(RECORD, 101) is None, "it died again, before the member said that it was done"
    assert past.since("t:0@8", 0) is None, "the member did not do that one"
    assert past.rounds(RECORD) == 1


def test_what_was_begun_and_not_said_to_be_done_is_not_known_until_another_one_is_done() -> None:
    first = Command("c", "g", 1, 90, "ops", Replay((("t", 0, 7),)))
    members = told(Members("g"), Result.of(first, "a", "accepted", 100))
    assert Past.of([first], members).since(RECORD, 50) == Replayed(100, is_done=False)
    assert Past.of([first], members).rounds(RECORD) == 0
    second = Command("d", "g", 2, 190, "ops", Replay((("t", 0, 7),)))
    told(members, Result.of(second, "b", "accepted", 200), Result.of(second, "b", "done", 300, records=(RECORD,)))
    assert Past.of([first, second], members).since(RECORD, 50) == Replayed(200, is_done=True)


def test_other_commands_and_refusals_say_nothing() -> None:
    skipped = Command("c", "g", 1, 90, "ops", Passing((("t", 0, 7),)))
    refused = Command("d", "g", 2, 90, "ops", Replay((("t", 0, 7),)))
    answers = [
        Result.of(skipped, "a", "done", 100, records=(RECORD,)),
        Result.of(refused, "a", "failed", 100, "t:0@7: it is not complete", records=()),
    ]
    assert Past.of([skipped, refused], told(Members("g"), *answers)).since(RECORD, 0) is None


def test_a_letter_whose_replay_may_have_been_done_waits_for_an_operator() -> None:
    run = Redrive("t.dead", Wanted(), {"t": 1, "t.dead": 1})
    run.begin({0: 0}, {})
    said = said_of(("t", 0, 7), 1, ValueError("x"), 1)
    letters = [Record(PlainMessage("t.dead", 0, n, b"k", b"v", tuple(said), (1, 50 + 100 * n))) for n in range(2)]
    run.observe(letters)
    past = Past({RECORD: [Replayed(100, is_done=False)]})
    found = [_place_of(run, one, past) for one in letters]
    assert found == [None, (("t", 0, 7), False)], "the second came later"
    assert (run.left, run.before) == ({"unknown": 1}, 0)
