"""Base resolution: where a newly assigned partition starts."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

import keylane as kl
from keylane.consumer.start import Committed, StartRule
from keylane.consumer.start_report import report_starts
from keylane.errors import HandlerError, PeerError
from keylane.offsets import OffsetMap, encode


def resolve(group: str, found: Committed, offset_reset: Any, **rules: Any) -> tuple[OffsetMap, bool]:
    return StartRule(group, offset_reset, **rules).resolve(found)


def found(offset: int | None, metadata: str = "", log_start: int = 0, log_end: int = 100, **more: Any) -> Committed:
    return Committed("flights", 3, offset, metadata, log_start, log_end, **more)


@pytest.mark.parametrize(("policy", "base"), [("earliest", 7), ("latest", 100)])
def test_without_a_commit_the_policy_decides_and_is_committed_first(policy: Any, base: int) -> None:
    assert resolve("g", found(None, log_start=7), policy) == (OffsetMap(base), True)


def test_without_a_commit_error_is_an_error_with_the_way_out() -> None:
    with pytest.raises(PeerError, match=r"group 'g' has no committed offset for flights-3.*offset_reset"):
        resolve("g", found(None), "error")


def test_the_committed_map_is_taken_up() -> None:
    offsets = OffsetMap(10, [10, 13], 20)
    assert resolve("g", found(10, encode(offsets)), "latest") == (offsets, False)


def test_metadata_that_is_no_map_is_logged_and_the_base_alone_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keylane"):
        assert resolve("g", found(10, "somebody else's"), "latest") == (OffsetMap(10), False)
    assert "group 'g', flights-3: starting from offset 10 without its map" in caplog.text


def test_a_commit_beyond_the_log_is_an_error_with_both_figures() -> None:
    with pytest.raises(PeerError, match=r"committed 101 for flights-3, beyond the end of its log at 100"):
        resolve("g", found(101), "earliest")
    assert resolve("g", found(100), "earliest") == (OffsetMap(100), False), "the end itself is all done"


@pytest.mark.parametrize(("policy", "base"), [("earliest", 7), ("latest", 100)])
def test_a_commit_beyond_the_log_starts_where_the_policy_says_and_is_committed_first(
    policy: Any, base: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "keylane"):
        start = resolve("g", found(101, log_start=7), "error", beyond_log_end=policy)
    assert start == (OffsetMap(base), True)
    assert f"beyond the end of its log at 100: starting from the {policy} offset" in caplog.text


BEYOND = encode(OffsetMap(90, [90], 100))
STREAMS = "AgAAAY3lYAAA"  # Kafka Streams: magic 2, a timestamp
HOSTILE = encode(OffsetMap(50, [range(50, 50 + 2**31 - 2)], 50 + 2**31 - 2), "run_length_v2")


@pytest.mark.parametrize(
    ("offset", "metadata", "says"),
    [
        (90, BEYOND, "the map has 100 complete, beyond the end of the log at 100"),
        (10, STREAMS, "Kafka Streams"),
        (10, "somebody else's", "Base64"),
        (50, HOSTILE, "beyond the end of the log"),
    ],
)
class TestForeignMetadata:
    def test_it_is_ignored_and_logged(
        self, offset: int, metadata: str, says: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "keylane"):
            assert resolve("g", found(offset, metadata), "error") == (OffsetMap(offset), False)
        assert f"group 'g', flights-3: starting from offset {offset} without its map" in caplog.text
        assert says in caplog.text

    def test_it_fails_where_that_is_asked_for(self, offset: int, metadata: str, says: str) -> None:
        with pytest.raises(
            PeerError, match=rf"flights-3: the metadata of the committed offset {offset} is not.*{says}"
        ):
            resolve("g", found(offset, metadata), "error", on_foreign_metadata="fail")

    def test_the_users_function_decides(self, offset: int, metadata: str, says: str) -> None:
        given: list[Any] = []

        def made(*what: Any) -> OffsetMap:
            given.append(what)
            return OffsetMap(offset, [offset], 95)

        start = resolve("g", found(offset, metadata), "error", on_foreign_metadata=made)
        assert start == (OffsetMap(offset, [offset], 95), False)
        assert given == [("flights", 3, offset, metadata)]
        nothing = resolve("g", found(offset, metadata), "error", on_foreign_metadata=lambda *_: None)
        assert nothing == (OffsetMap(offset), False)


ENVELOPE = "WAADYWJjbAAGNgA="
"""The magic byte X, a length of 3, three bytes of somebody's, and a map."""


@pytest.mark.parametrize(
    ("metadata", "says"),
    [(ENVELOPE, "magic byte b'X', which is that of the Parallel Consumer's envelope"), ("UWxhdGVy", "magic byte b'Q'")],
)
def test_what_may_be_a_map_of_an_unknown_kind_is_refused_by_name(
    metadata: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has complete would run again, and nobody would know."""
    where = r"group 'g', flights-3: the metadata of the committed offset 10 is not for keylane: "
    with pytest.raises(PeerError, match=where + rf".*{says}; .*on_foreign_metadata='ignore'"):
        resolve("g", found(10, metadata), "error")
    with caplog.at_level(logging.WARNING, "keylane"):
        assert resolve("g", found(10, metadata), "error", on_foreign_metadata="ignore") == (OffsetMap(10), False)
    assert says in caplog.text


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *_: 1 / 0, "on_foreign_metadata raised ZeroDivisionError"),
        (lambda *_: "map", "returned a value of type str; return None, or an OffsetMap with base 10"),
        (lambda *_: OffsetMap(11), "with base 10"),
        (lambda *_: OffsetMap(10, [10], 100), "ends below the log's end at 100"),
    ],
)
def test_a_users_function_that_does_not_help_is_named(function: Any, says: str) -> None:
    with pytest.raises(HandlerError, match=says):
        resolve("g", found(10, "garbage"), "error", on_foreign_metadata=function)


def test_the_users_own_metadata_is_given_back_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    rule = StartRule("g", "error", has_own_metadata=True)
    assert rule.resolve(found(10, "state-10.bin")) == (OffsetMap(10), False)
    assert rule.own_metadata(found(10, "state-10.bin")) == "state-10.bin"
    assert not caplog.records
    offsets = OffsetMap(10, [10, 13], 20)
    assert rule.resolve(found(10, encode(offsets))) == (offsets, False), "of a run with another ordering"
    assert rule.own_metadata(found(10, encode(offsets))) == ""
    assert StartRule("g", "error").own_metadata(found(10, "state-10.bin")) == ""


def test_a_base_below_the_log_start_is_left_to_the_tracker() -> None:
    assert resolve("g", found(3, log_start=50), "latest") == (OffsetMap(3), False)


# --- copied maps ---

MAP = OffsetMap(10, [10, 13], 20)
MARKED = encode(MAP, is_marked=True)


def test_a_map_beside_the_epoch_that_it_was_committed_with_is_taken_up() -> None:
    own = found(10, MARKED, leader_epoch=0)
    assert own.origin == "own"
    assert resolve("g", own, "latest", on_copied_map="fail") == (MAP, False)


@pytest.mark.parametrize("rule", ["run_again", "fail", "believe"])
def test_a_map_without_a_mark_is_believed_whatever_the_rule(rule: Any) -> None:
    others = found(10, encode(MAP))
    assert others.origin == "unmarked"
    assert resolve("g", others, "latest", on_copied_map=rule) == (MAP, False)


def test_a_marked_map_without_an_epoch_was_copied() -> None:
    copied = found(10, MARKED)
    assert copied.origin == "copied"
    assert resolve("g", copied, "latest") == (OffsetMap(10), False)
    assert resolve("g", copied, "latest", on_copied_map="believe") == (MAP, False)
    with pytest.raises(
        PeerError, match=r"flights-3: the commit of offset 10 was copied .*records run again \(up to 9 beyond it\)"
    ):
        resolve("g", copied, "latest", on_copied_map="fail")


@pytest.mark.parametrize(
    ("delivery", "by_default"),
    [("at_least_once", "run_again"), ("at_most_once", "fail"), ("almost_once", "fail"), ("transactional", "fail")],
)
def test_by_default_a_mode_fails_whose_promise_a_repeat_would_break(delivery: Any, by_default: str) -> None:
    kafka = {"bootstrap.servers": "h:1", "group.id": "g"}
    made = kl.Pipeline(kafka=kafka, topics=["t"], handler=print, delivery=delivery, outputs=["o"])
    assert StartRule.of(made).on_copied_map == by_default
    chosen = replace(made, commit=kl.Commit(on_copied_map="believe"))
    assert StartRule.of(chosen).on_copied_map == "believe"


# --- logs that were cut ---


def test_the_map_ends_where_the_log_was_cut(caplog: pytest.LogCaptureFixture) -> None:
    cut = found(10, MARKED, leader_epoch=3, is_checked=True, changed_from=16)
    with caplog.at_level(logging.WARNING, "keylane"):
        assert resolve("g", cut, "latest") == (OffsetMap(10, [10, 13], 15), False)
    assert "its log was cut at 16" in caplog.text
    assert "has 5 of these offsets complete" in caplog.text
    whole = found(10, MARKED, leader_epoch=3, is_checked=True, changed_from=21)
    assert resolve("g", whole, "latest") == (MAP, False)


def test_an_offset_beyond_the_cut_is_refused_with_the_command_that_goes_on_there() -> None:
    cut = found(60, leader_epoch=3, is_checked=True, changed_from=40)
    reset = r"`keylane groups reset g --topic flights:3 --to-offset 40 --execute`"
    with pytest.raises(PeerError, match=rf"committed 60 for flights-3, and its log was cut at 40 .*{reset}"):
        resolve("g", cut, "latest")
    assert resolve("g", cut, "latest", beyond_log_end="earliest") == (OffsetMap(40), True)
    assert resolve("g", cut, "latest", beyond_log_end="latest") == (OffsetMap(100), True)
    at_the_cut = found(40, leader_epoch=3, is_checked=True, changed_from=40)
    assert resolve("g", at_the_cut, "latest") == (OffsetMap(40), False)


# --- what is said of starts ---


def reported(caplog: pytest.LogCaptureFixture, rule: StartRule, *starts: Committed) -> list[tuple[str, str]]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "keylane"):
        report_starts(rule, [(one, rule.resolve(one)[0]) for one in starts])
    return [(one.levelname, one.getMessage()) for one in caplog.records]


def test_a_partition_without_a_commit_is_named_with_where_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    [(level, text)] = reported(caplog, StartRule("g"), found(None, log_start=7))
    assert level == "WARNING", "93 records are passed over"
    assert "offset_reset='latest' says; 93 records of their logs are passed over: flights-3 at 100 of 7 to 100" in text
    [(level, text)] = reported(caplog, StartRule("g", "earliest"), *(found(None, log_start=7) for _ in range(8)))
    assert level == "INFO"
    assert "8 partitions begin without a committed offset" in text
    assert text.endswith("flights-3 at 7 of 7 to 100 and 3 more")


def test_copied_and_unmarked_maps_are_told_in_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    copied, unmarked, own = found(10, MARKED), found(10, encode(MAP)), found(10, MARKED, leader_epoch=0)
    told = reported(caplog, StartRule("g"), copied, unmarked, copied, own, found(5))
    assert [level for level, _ in told] == ["INFO", "WARNING"]
    assert "offset maps of 1 partitions were committed without a leader epoch" in told[0][1]
    assert "commits of 2 partitions were copied" in told[1][1]
    assert "up to 18 complete records beyond these offsets run again" in told[1][1]
    [(level, text)] = reported(caplog, StartRule("g", on_copied_map="believe"), copied)
    assert (level, "are believed" in text) == ("INFO", True)
