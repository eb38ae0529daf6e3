"""Expressions for topics match what Python's `re` matches, where both know them, and never take long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.coordinator.consumer_groups.topic_patterns import PatternError, TopicPattern

LITERALS = ("a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c_]", r"\d", r"\w", r"\W")
ATOMS = st.sampled_from([*LITERALS, "^", "$", r"\b", r"\B", "(?:ab|)", "(?i:A)"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(PATTERNS, st.lists(st.text("abAc1-_.", min_size=1, max_size=6), min_size=1, max_size=5))
def test_it_matches_as_re_does(pattern: str, names: list[str]) -> None:
    compiled = TopicPattern(pattern)
    assert [compiled.matches(name) for name in names] == [bool(re.fullmatch(pattern, name)) for name in names]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"\Qa.b\E[-c]*", "a.b-c"),
        ("[[:alpha:]]+[[:^digit:]]", "ab-"),
        (r"\pL+\p{Nd}", "ab1"),
        ("(?P<name>a)(?<other>b)", "ab"),
        ("(?s-i)a.", "a-"),
        (r"\Aa\z", "a"),
        (r"\x61\x{62}\143", "abc"),
        ("a{,2}", "a{,2}"),
        ("[]a]+", "a]"),
        ("", ""),
    ],
)
def test_what_re2_knows_besides(pattern: str, name: str) -> None:
    assert TopicPattern(pattern).matches(name)
    assert not TopicPattern(pattern).matches(name + "!")


def test_no_expression_takes_long() -> None:
    """Python's `re` would take 2^200 steps."""
    assert not TopicPattern("(a+)+(a+)+b").matches("a" * 249)
    with pytest.raises(PatternError, match="expression is too large"):
        TopicPattern("(((a{100}){100}){100})")
    with pytest.raises(PatternError, match="nests too deeply"):
        TopicPattern("(" * 200 + ")" * 200)
