"""Regular expressions of clients: what would hold the broker up is refused before it is compiled or matched."""

from __future__ import annotations

import pytest

from keylane.coordinator.patterns import MAX_LETTERS, PatternError, matcher


def test_a_name_matches_as_a_whole() -> None:
    matches = matcher("orders-[0-9]+|payments")
    assert [name for name in ("orders-1", "orders-1x", "payments", "my-payments") if matches(name)] == [
        "orders-1",
        "payments",
    ]


def test_a_long_expression_is_refused_by_its_length() -> None:
    longest = "(a?)" * (MAX_LETTERS // 4)
    assert matcher(longest)("a")
    with pytest.raises(PatternError, match="2,001 letters, and 2,000 are taken"):
        matcher(longest + "a")


def test_an_expression_that_becomes_large_is_refused() -> None:
    with pytest.raises(PatternError, match="too large"):
        matcher(r"\p{L}{1000}")
