"""Base resolution: where a newly assigned partition starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.engine.start import Committed, resolve
from keylane.errors import PeerError
from keylane.offsets import OffsetMap, encode


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


@pytest.mark.parametrize("metadata", ["", encode(OffsetMap(100, [100], 101))])
def test_a_commit_beyond_the_log_is_an_error_with_both_figures(metadata: str) -> None:
    offset = 100 if metadata else 101
    with pytest.raises(PeerError, match=r"committed 10[12] for flights-3, beyond the end of its log at 100"):
        resolve("g", found(offset, metadata), "earliest")


def test_a_base_below_the_log_start_is_left_to_the_tracker() -> None:
    assert resolve("g", found(3, log_start=50), "latest") == (OffsetMap(3), False)
