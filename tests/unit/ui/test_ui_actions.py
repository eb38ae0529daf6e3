"""What a page sends is refused by name where it is wrong; the same command stands on the command line."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from keylane.cli.dlq_letters import wanted_of
from keylane.cli.main import build_parser
from keylane.desk.letters import Wanted
from keylane.errors import UsageError
from keylane.ui.actions import Actions, operate_line, purge_line, redrive_line


class FakeAdmin:
    """Knows topics, and no broker."""

    def topics(self, _named: object = ()) -> dict[str, int]:
        return {"flights": 4, "flights.dead": 1, "__consumer_offsets": 16}


@pytest.fixture
def actions() -> Actions:
    admin: Any = FakeAdmin()
    return Actions({"bootstrap.servers": "127.0.0.1:1"}, admin, "a token for the tests")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "group: give a text"),
        ({"group": ["g"], "do": "pause"}, "group: give a text"),
        ({"group": "g", "do": "stop"}, "do 'stop': give one of pause, resume, drain, adjust, seek"),
        ({"group": "g", "do": "pause", "topics": "flights"}, "topics: give a list of texts"),
        ({"group": "g", "do": "pause", "topics": ["flights:9"]}, "the topic has partitions 0 to 3"),
        ({"group": "g", "do": "pause", "topics": ["other"]}, "there is no topic 'other'"),
        ({"group": "g", "do": "seek"}, "seek: name the partitions"),
        ({"group": "g", "do": "seek", "topics": ["flights"]}, "to: give a kind"),
        ({"group": "g", "do": "seek", "topics": ["flights"], "to": {"kind": "end"}}, "to: give a kind"),
        ({"group": "g", "do": "seek", "topics": ["flights"], "to": {"kind": "offset", "value": -1}}, "value -1"),
        ({"group": "g", "do": "seek", "topics": ["flights"], "to": {"kind": "offset", "value": 1.5}}, "value 1.5"),
        ({"group": "g", "do": "adjust"}, "adjust: give"),
        ({"group": "g", "do": "adjust", "max_concurrency": 0}, "max_concurrency"),
        ({"group": "g", "do": "adjust", "max_concurrency": True}, "max_concurrency True"),
        ({"group": "g", "do": "adjust", "rates": {"per_second": 1}}, "rates: give some of records_per_s"),
        ({"group": "g", "do": "adjust", "rates": {"per_key": "1"}}, "rates: per_key '1'"),
        ({"group": "g", "do": "adjust", "rates": {"per_key": -1}}, "per_key"),
        ({"group": "g", "do": "pause", "wait_ms": "1"}, "wait_ms '1'"),
        ({"group": "g", "do": "hold-key"}, "hold-key: give a key, or an expression"),
        ({"group": "g", "do": "hold-key", "all": True}, "hold-key: give a key, or an expression"),
        ({"group": "g", "do": "skip-key", "key": "a", "where": "key=b"}, "skip-key: give a key, or an expression"),
        ({"group": "g", "do": "limit-key", "key": "a", "per_s": "2"}, "per_s '2': give records a second"),
        ({"group": "g", "do": "limit-key", "key": "a", "per_s": 0}, "give a limit records a second, above 0"),
        ({"group": "g", "do": "release-key", "key": "a", "all": True}, "release-key: give a key, or an expression"),
        ({"group": "g", "do": "skip-record"}, "0 records: name at most 100"),
        ({"group": "g", "do": "skip-record", "records": "flights:0@1"}, "records: give a list of texts"),
        ({"group": "g", "do": "skip-record", "records": ["flights:9@1"]}, "the topic has partitions 0 to 3"),
        ({"group": "g", "do": "park-record", "records": ["flights:0@1"]}, "park-record: name the dead-letter topic"),
        ({"group": "g", "do": "park-record", "records": ["flights:0@1"], "dlq": "no"}, "the topic 'no' does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(
    actions: Actions, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        actions.operate(body)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "topic: give a text"),
        ({"topic": "no"}, "the topic 'no' does not exist"),
        ({"topic": "flights.dead", "limit": "3"}, "limit '3'"),
        ({"topic": "flights.dead", "since": "yesterday"}, "since 'yesterday': give milliseconds"),
        ({"topic": "flights.dead", "until": True}, "until True: give milliseconds"),
    ],
)
def test_a_redrive_that_cannot_be_meant_is_refused(actions: Actions, body: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        actions.redrive(body)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "place", [{}, {"partition": "0"}, {"partition": "0", "offset": "-1"}, {"partition": None, "offset": 3}]
)
def test_a_letter_has_a_place(actions: Actions, place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="named by topic, partition and offset"):
        actions.letter({"topic": "flights.dead"} | place)


@pytest.mark.parametrize("to", [None, {}, {"kind": "earliest"}, {"kind": "offset", "value": -1}])
def test_a_purge_says_what_goes(actions: Actions, to: Any) -> None:
    with pytest.raises(UsageError, match=r"to: give a kind, one of redriven, time, offset, latest|value -1"):
        actions.purge({"topic": "flights.dead", "to": to, "execute": True})


def test_kafkas_own_topics_are_not_offered(actions: Actions) -> None:
    assert actions.topics() == {"topics": ["flights", "flights.dead"]}


@pytest.mark.parametrize(
    ("do", "body", "line"),
    [
        ("pause", {}, "keylane operate pause 'my group'"),
        (
            "drain",
            {"topics": ["f:0,3-5"], "execute": True},
            "keylane operate drain 'my group' --topic f:0,3-5 --execute",
        ),
        (
            "adjust",
            {"max_concurrency": 20, "rates": {"per_key": 0.5, "records_per_s": None}, "topics": ["f"]},
            "keylane operate adjust 'my group' --max-concurrency 20 --per-key 0.5 --records-per-s unlimited",
        ),
        ("adjust", {"as_in_pipeline": True}, "keylane operate adjust 'my group' --as-in-pipeline"),
        ("seek", {"topics": ["f"], "to": {"kind": "latest"}}, "keylane operate seek 'my group' --topic f --to-latest"),
        (
            "seek",
            {"topics": ["f"], "to": {"kind": "time", "value": 1_763_712_000_000}},
            "keylane operate seek 'my group' --topic f --to-datetime 2025-11-21T08:00:00.000+00:00",
        ),
        (
            "seek",
            {"topics": ["f"], "to": {"kind": "offset", "value": 12}},
            "keylane operate seek 'my group' --topic f --to-offset 12",
        ),
        ("hold-key", {"key": "a b"}, "keylane operate hold-key 'my group' --key 'a b'"),
        (
            "limit-key",
            {"where": "key=a* header.tenant=acme", "per_s": 2.5, "execute": True},
            "keylane operate limit-key 'my group' --where 'key=a* header.tenant=acme' --per-s 2.5 --execute",
        ),
        ("skip-key", {"key": "a", "where": ""}, "keylane operate skip-key 'my group' --key a"),
        ("release-key", {"all": True}, "keylane operate release-key 'my group' --all"),
        ("replay-record", {"records": ["f:0@1", "f:1@2"]}, "keylane operate replay-record 'my group' f:0@1 f:1@2"),
        ("skip-record", {"records": ["f:0@1"], "dlq": "d"}, "keylane operate skip-record 'my group' f:0@1"),
        (
            "park-record",
            {"records": ["f:0@1"], "dlq": "f.dead", "reason": "ticket 481", "execute": True},
            "keylane operate park-record 'my group' f:0@1 --dlq f.dead --reason 'ticket 481' --execute",
        ),
    ],
)
def test_the_same_command_is_one_that_the_command_line_takes(do: str, body: dict[str, Any], line: str) -> None:
    assert operate_line("my group", do, body) == line
    words = shlex.split(line)[1:]
    args = build_parser(words).parse_args(words)
    assert (args.operate_command, args.group, args.execute) == (do, "my group", body.get("execute", False))


def test_the_same_redrive_is_one_that_the_command_line_takes() -> None:
    line = redrive_line({"topic": "t.dead", "from": "t", "error": "ValueError", "limit": 3, "rate": 2, "execute": True})
    assert line == "keylane dlq redrive t.dead --topic t --error ValueError --limit 3 --rate 2 --execute"
    words = shlex.split(line)[1:]
    args = build_parser(words).parse_args(words)
    assert (args.dlq, args.topic, args.limit, args.rate, args.execute) == ("t.dead", "t", 3, 2.0, True)
    line = redrive_line({"topic": "t.dead", "in_group": "the group"})
    assert line == "keylane dlq redrive t.dead --in-group 'the group'"
    words = shlex.split(line)[1:]
    assert build_parser(words).parse_args(words).in_group == "the group"
    chosen = {"reason": "timed out", "key": "a b", "since": 1_763_712_000_000, "until": None}
    line = redrive_line({"topic": "t.dead", **chosen})
    since = "2025-11-21T08:00:00.000+00:00"
    assert line == f"keylane dlq redrive t.dead --reason 'timed out' --key 'a b' --since {since}"
    words = shlex.split(line)[1:]
    assert wanted_of(build_parser(words).parse_args(words)) == Wanted(
        reason="timed out", key=b"a b", since_ms=1_763_712_000_000
    )


@pytest.mark.parametrize(
    ("to", "option"),
    [
        ({"kind": "redriven"}, "--to-redriven"),
        ({"kind": "latest"}, "--to-latest"),
        ({"kind": "offset", "value": 7}, "--to-offset 7"),
        ({"kind": "time", "value": 1_763_712_000_000}, "--to-datetime 2025-11-21T08:00:00.000+00:00"),
    ],
)
def test_the_same_purge_is_one_that_the_command_line_takes(to: dict[str, Any], option: str) -> None:
    line = purge_line({"topic": "t.dead", "to": to, "execute": True})
    assert line == f"keylane dlq purge t.dead {option} --execute"
    words = shlex.split(line)[1:]
    args = build_parser(words).parse_args(words)
    assert (args.dlq, args.dlq_command, args.execute) == ("t.dead", "purge", True)
