"""Commands: what is written is read, which count, and what holds after them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keylane as kl
from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.passing import Passing
from keylane.flow.keys import MOST_RULES, KeyRule, Where
from keylane.kafka.membership import Replay, Seek, Target
from keylane.operations.commands import (
    KEPT_MS,
    LATE_MS,
    Adjusting,
    Command,
    CommandLog,
    Holding,
    Refusal,
    Release,
    adjusting,
    done_with,
    mac_of,
    passing,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.operations.commands import Asked

TOKEN = "a token of the members"
CLUSTER = "cluster-1"
Stored = tuple[bytes, bytes, bytes]
"""Key, value and MAC."""

names = st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 2))
some = st.none() | st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
rates = st.dictionaries(
    st.sampled_from(["records_per_s", "per_partition", "per_key"]), st.none() | st.integers(1, 9).map(float)
)
wheres = st.sampled_from(["key=a", "key=a*", "header.tenant=acme"]).map(Where.parse)
records = st.lists(st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 2), st.integers(0, 9)), min_size=1)
asks: st.SearchStrategy[Asked] = st.one_of(
    st.builds(KeyRule, wheres, st.sampled_from(["hold", "skip"])),
    st.builds(KeyRule, wheres, st.just("limit"), st.integers(1, 9).map(float)),
    st.builds(Release, st.none() | wheres),
    st.builds(passing, records),
    st.builds(passing, records, st.just("dead"), st.text(max_size=5)),
    st.builds(Pause, some),
    st.builds(Resume, some),
    st.builds(Adjusting, st.none() | st.integers(1, 9), rates),
    st.just(Adjusting(rates={}, as_in_pipeline=True)),
    st.builds(Seek, st.dictionaries(names, st.builds(Target, st.integers(0, 99)), min_size=1)),
)


def command(number: int, asked: Asked, id_: str = "", group: str = "g", sent_ms: int = 0) -> Command:
    return Command(id_ or f"c{number}", group, number, sent_ms, "ops@host", asked)


def stored(one: Command, token: str = TOKEN, cluster: str = CLUSTER) -> Stored:
    value = one.value()
    return one.id.encode(), value, mac_of(token, cluster, value)


def log_of(records: Iterable[Stored]) -> CommandLog:
    log = CommandLog("g", TOKEN, CLUSTER)
    for record in records:
        log.take(*record)
    return log


def compacted(records: Sequence[Stored]) -> list[Stored]:
    """What is left when a broker has compacted the topic: the last record of each key, where it stands."""
    last = {record[0]: at for at, record in enumerate(records)}
    return [record for at, record in enumerate(records) if last[record[0]] == at]


def as_told(
    commands: Iterable[Asked], pipeline: kl.Pipeline
) -> tuple[Counter[str], int | str, kl.Rates, dict[str, KeyRule]]:
    """What a consumer does that is told one after the other, as a user reads it: by partition, without `Settings`."""
    every = [(topic, number) for topic in ("orders", "payments") for number in range(3)]
    stands: set[tuple[str, int]] = set()
    all_stand = False
    rules: dict[str, KeyRule] = {}
    most, current = pipeline.max_concurrency, dataclasses.asdict(pipeline.rates)
    for asked in commands:
        if isinstance(asked, Pause):
            all_stand = all_stand or asked.names is None
            stands.update(asked.names or ())
        elif isinstance(asked, Resume):
            all_stand = all_stand and asked.names is not None
            stands.difference_update(every if asked.names is None else asked.names)
        elif isinstance(asked, KeyRule):
            rules[str(asked.where)] = asked
        elif isinstance(asked, Release):
            rules = {} if asked.where is None else {one: rules[one] for one in rules if one != str(asked.where)}
        elif isinstance(asked, Adjusting):
            if asked.as_in_pipeline:
                most, current = pipeline.max_concurrency, dataclasses.asdict(pipeline.rates)
            else:
                most = asked.max_concurrency or most
                current |= asked.rates or {}
    shown = Counter(f"{topic}-{number}" for topic, number in every if all_stand or (topic, number) in stands)
    return shown, most, kl.Rates(**current), rules


PIPELINE = kl.Pipeline(
    kafka={"bootstrap.servers": "b", "group.id": "g"},
    topics=["orders"],
    handler=print,
    max_concurrency=7,
    rates=kl.Rates(per_key=2.0),
)


@given(asks)
def test_what_is_written_is_read(asked: Asked) -> None:
    one = command(3, asked, sent_ms=17)
    assert read(one.value()) == one


@given(st.lists(asks, max_size=8))
@example([adjusting(None, {"records_per_s": 3.0}), adjusting(None, {"per_partition": 2.0})])
def test_what_holds_is_what_a_consumer_does_that_was_told_all_of_it(asked: list[Asked]) -> None:
    settings = log_of(stored(command(number, one)) for number, one in enumerate(asked, 1)).holding.of(PIPELINE)
    every = [(topic, number) for topic in ("orders", "payments") for number in range(3)]
    shown = Counter(
        f"{topic}-{number}" for topic, number in every if settings.all_paused or (topic, number) in settings.paused
    )
    most = PIPELINE.max_concurrency if settings.max_concurrency is None else settings.max_concurrency
    rules = {str(one.where): one for one in settings.keys}
    assert (shown, most, settings.rates or PIPELINE.rates, rules) == as_told(asked, PIPELINE)


def test_a_command_without_the_token_changes_nothing_and_is_refused() -> None:
    one = command(1, Pause(None))
    key, value, _ = stored(one)
    for mac in (None, b"", mac_of("another token of somebody", CLUSTER, value)):
        log = CommandLog("g", TOKEN, CLUSTER)
        assert isinstance(log.take(key, value, mac), Refusal)
        assert log.holding == Holding()
    changed = json.dumps(json.loads(value) | {"do": "resume"}).encode()
    assert isinstance(CommandLog("g", TOKEN, CLUSTER).take(key, changed, mac_of(TOKEN, CLUSTER, value)), Refusal)


def test_a_command_holds_for_the_cluster_alone_that_it_was_signed_for() -> None:
    kept = stored(command(1, Pause(None)))
    assert isinstance(CommandLog("g", TOKEN, "cluster-2").take(*kept), Refusal)
    assert isinstance(CommandLog("g", TOKEN, CLUSTER).take(*kept), Command)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(asks, st.data())
def test_whatever_somebody_writes_a_reader_goes_on(asked: Asked, data: st.DataObject) -> None:
    """Any bytes, and any change to a command: none raises, and none counts without a signature."""
    log = CommandLog("g", TOKEN, CLUSTER)
    said = json.loads(command(1, asked).value())
    name = data.draw(st.sampled_from(sorted(said)))
    said[name] = data.draw(ANY_JSON)
    value = json.dumps(said).encode()
    for garbage in (value, data.draw(st.binary()), b"[" * 100_000, b'{"version": 1, "number": 1e999}'):
        assert not isinstance(log.take(str(said["id"]).encode(errors="replace"), garbage, b"no signature"), Command)
        log.take(b"c1", garbage, log.mac_of(garbage))  # signed, whatever it is
    json.dumps(log.holding.to_dict())


def test_the_token_is_not_in_what_is_stored() -> None:
    assert all(TOKEN.encode() not in part for part in stored(command(1, Pause(None))))


def test_another_groups_command_is_none_of_ours() -> None:
    log = CommandLog("g", TOKEN, CLUSTER)
    assert log.take(*stored(command(1, Pause(None), group="h"))) is None
    assert log.take(b"x", b"garbage", b"") is None
    assert log.take(b"c1", None, None) is None
    assert log.holding == Holding()


def test_of_two_senders_at_once_the_later_one_is_refused_by_every_reader() -> None:
    log = CommandLog("g", TOKEN, CLUSTER)
    assert isinstance(log.take(*stored(command(1, Pause(None), "a"))), Command)
    second = log.take(*stored(command(1, Resume(None), "b")))
    assert isinstance(second, Refusal)
    assert "another command came before it" in second.reason
    assert log.holding.settings.all_paused


@given(st.lists(asks, min_size=1, max_size=6), st.data())
def test_an_old_command_that_is_written_again_is_refused(asked: list[Asked], data: st.DataObject) -> None:
    """By members that run, and by those that start when the topic was compacted, but for the old command itself, which
    whoever may write there could delete as well."""
    records = [stored(command(number, one)) for number, one in enumerate(asked, 1)]
    again = data.draw(st.sampled_from(records))
    log = log_of(records)
    held = log.holding
    assert isinstance(log.take(*again), Refusal)
    assert log.holding == held
    left = [record for record in records if record != again]
    if left:
        assert log_of(compacted([*records, again])).holding in (log_of(left).holding, held)


@given(st.lists(st.tuples(asks, st.booleans()), max_size=8))
def test_what_is_deleted_changes_nothing(asked: list[tuple[Asked, bool]]) -> None:
    now_ms = 2 * KEPT_MS
    counted = [command(number, one, sent_ms=0 if is_old else now_ms) for number, (one, is_old) in enumerate(asked, 1)]
    gone = done_with(counted, now_ms)
    assert all(one.sent_ms == 0 for one in gone)
    before, after = log_of(map(stored, counted)), log_of(stored(one) for one in counted if one not in gone)
    assert (before.holding, before.number) == (after.holding, after.number)


@given(st.lists(asks, max_size=8))
def test_what_members_write_again_holds_as_before_for_whoever_reads_it(asked: list[Asked]) -> None:
    log = log_of(stored(command(number, one)) for number, one in enumerate(asked, 1))
    again = [(key, value, mac) for key, value, mac in log.to_write_again(0)]
    new = log_of([*again, *again])  # of two members at once
    assert (new.holding, new.number) == (log.holding, log.number)
    assert all(isinstance(log.take(*one), Refusal) for one in again), "and nothing is done twice"


def test_what_later_commands_have_undone_is_deleted_once_it_is_old() -> None:
    asked: list[Asked] = [
        Pause(None),
        Seek({("orders", 0): Target(1)}),
        Resume(None),
        Pause((("orders", 1),)),
        Resume(()),
    ]
    counted = [command(number, one) for number, one in enumerate(asked, 1)]
    assert done_with(counted, KEPT_MS) == []
    assert [one.number for one in done_with(counted, KEPT_MS + 1)] == [1, 2, 3]


def test_only_what_is_done_once_is_ever_late() -> None:
    seek, pause = command(1, Seek({("orders", 0): Target(1)})), command(1, Pause(None))
    for one in (Passing((("orders", 0, 1),)), Replay((("orders", 0, 1),))):
        single = command(1, one)
        assert (single.is_late(LATE_MS), single.is_late(LATE_MS + 1)) == (False, True)
    assert (seek.is_late(LATE_MS), seek.is_late(LATE_MS + 1), pause.is_late(LATE_MS + 1)) == (False, True, False)


def test_a_consumer_that_runs_is_told_of_the_change_with_the_rates_as_they_are_then() -> None:
    first, second = Adjusting(3, {"records_per_s": 5.0}), Adjusting(rates={"per_key": None})
    held = Holding().after(first)
    assert held.change(first, PIPELINE) == Adjust(3, kl.Rates(records_per_s=5.0, per_key=2.0))
    held = held.after(second)
    assert held.change(second, PIPELINE) == Adjust(None, kl.Rates(records_per_s=5.0))
    back = Adjusting(as_in_pipeline=True)
    assert held.after(back).change(back, PIPELINE) == Adjust(7, PIPELINE.rates)


def test_a_consumer_that_runs_is_told_all_rules_that_hold() -> None:
    hold, slow = KeyRule(Where.parse("key=b"), "hold"), KeyRule(Where.parse("key=a"), "limit", 2.0)
    held = Holding().after(hold).after(slow)
    assert held.change(slow, PIPELINE) == RuleKeys((slow, hold))
    back = Release(hold.where)
    assert held.after(back).change(back, PIPELINE) == RuleKeys((slow,))
    assert held.of(PIPELINE).changes == (RuleKeys((slow, hold)),), "also one that starts later"
    assert held.to_dict()["keys"] == [
        {"where": "key=a", "do": "limit", "per_s": 2.0},
        {"where": "key=b", "do": "hold", "per_s": None},
    ]


def test_a_rule_that_does_not_hold_is_not_taken_back_and_rules_are_bounded() -> None:
    held = Holding()
    for asked in (Release(None), Release(Where.parse("key=a"))):
        with pytest.raises(kl.UsageError, match="no rule holds for"):
            held.check(asked)
    for number in range(MOST_RULES):
        held.check(one := KeyRule(Where.parse(f"key={number}"), "hold"))
        held = held.after(one)
    with pytest.raises(kl.UsageError, match="100 rules hold already"):
        held.check(KeyRule(Where.parse("key=b"), "hold"))
    held.check(KeyRule(Where.parse("key=0"), "skip"))  # in the place of another one
    held.check(Release(Where.parse("key=0")))


@pytest.mark.parametrize(("most", "given"), [(0, {}), (None, {"per_key": -1.0}), (None, {"per_hour": 1.0})])
def test_what_cannot_be_adjusted_is_refused_where_it_is_made(most: int | None, given: dict[str, float | None]) -> None:
    with pytest.raises(kl.UsageError):
        adjusting(most, given)
