"""Topics by pattern: what is taken, what it means to each who reads it, and what is refused with what to write."""

from __future__ import annotations

import ctypes
import re

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from keylane import Pipeline, UsageError
from keylane.patterns import for_clients, is_read, matches

NAMES = st.text("ab_-.09Z", min_size=1, max_size=6)
ATOMS = st.sampled_from(["a", "b", "_", "-", r"\.", ".", "[ab]", "[^a]", "[a-z0-9_.-]", "Z"])
SIGNS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}"])
BODIES = st.recursive(
    st.builds(str.__add__, ATOMS, SIGNS),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: f"({'|'.join(some)})")
    ),
    max_leaves=6,
)


def posix(expression: str, name: str) -> bool:
    """The C library's, which librdkafka asks (REG_EXTENDED, REG_NOSUB)."""
    library = ctypes.CDLL(None)
    compiled = ctypes.create_string_buffer(256)
    assert library.regcomp(compiled, expression.encode(), 1 | 8) == 0, expression
    try:
        return bool(library.regexec(compiled, name.encode(), 0, None, 0) == 0)
    finally:
        library.regfree(compiled)


@given(BODIES, NAMES, st.sampled_from(["", "$"]))
def test_all_read_an_expression_alike_and_about_the_whole_name(body: str, name: str, end: str) -> None:
    sent = for_clients(f"^{body}{end}")
    found = re.fullmatch(body, name) is not None
    assert posix(sent, name) is found
    assert (re2.fullmatch(sent, name) is not None) is found
    assert "\\" not in sent
    assert '"' not in sent
    assert matches(f"^{body}{end}", name) is (found and not name.startswith("__"))


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        (r"^orders\d+", "[0-9]"),
        (r"^orders-\w+", "[A-Za-z0-9_]"),
        ("^orders-[[:alpha:]]+", "A-Za-z"),
        ("^orders-(?:eu|us)$", "write ("),
        ("^(?i)ORDERS.*", "without it"),
        ("^(?!test)orders.*", "without it"),
        ("^orders-e\\D$", "[^0-9]"),
        ("^orders|^returns", "as a list"),
        ("^orders$.*", "as a list"),
        ("^orders.*?", "write *"),
        ("^orders.*+", "write *"),
        ("^*orders", "take it out"),
        ("^(|a)b", "write what it is"),
        ("^", "write what it is"),
        ("^a{2", "write {2}"),
        ("^a{,2}", "write {2}"),
        ("^a{3,2}", "the lower first"),
        ("^a{256}", "up to 255"),
        ("^[z-a]", "no range"),
        ("^[A-z]", "no range"),
        ("^[]a]", "closes it"),
        ("^[a", "closes it"),
        ("^[a-\\d]", "[0-9]"),
        ("^[+-.]", "- last"),
        ("^(a", "add it"),
        ("^a)", "take it out"),
        ("^a b", r"which is \."),
        ('^a"', r"which is \."),
        ("^ä", r"which is \."),
        ("^a\\", r"only \. is known"),
        ("^" + "(" * 60 + "a" + ")" * 60, "fewer"),
    ],
)
def test_what_not_all_read_alike_is_refused_where_the_pipeline_is_made(expression: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        Pipeline(kafka={"bootstrap.servers": "b:1", "group.id": "g"}, topics=expression, handler=lambda _: None)
    assert hint in str(refused.value)
    assert repr(expression) in str(refused.value)


def test_internal_topics_are_read_by_name_alone() -> None:
    assert not matches("^.*", "__consumer_offsets")
    assert not matches("^__.*", "__consumer_offsets")
    assert is_read(("^.*", "__consumer_offsets"), "__consumer_offsets")
    assert matches("^_.*", "_schemas")
