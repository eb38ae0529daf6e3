"""Base resolution: where a newly assigned partition starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.consumer.start import Committed, StartRule
from keylane.errors import HandlerError, PeerError
from keylane.offsets import OffsetMap, encode


def resolve(group: str, found: Committed, offset_reset: Any, **rules: Any) -> tuple[OffsetMap, bool]:
    return StartRule(group, offset_reset, **rules).resolve(found)


def found(offset: int | None, metadata: str = "", log_start: int = 0, log_end: int = 100) -> Committed:
    return Committed("flights", 3, offset, metadata, log_start, log_end)


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
