"""The digest of a sink's rows: by rows, whatever their order and batches, and another one for any other rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keylane.spark.structured.exact.digest import Digest
from keylane.spark.structured.sink_rows import SinkRows

if TYPE_CHECKING:
    import random

Row = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]

data = st.none() | st.binary(max_size=3)
headers = st.lists(st.tuples(st.text(max_size=2), data), max_size=2).map(tuple)
rows = st.tuples(st.sampled_from(["t", "u"]), data, data, st.just(()) | headers, st.none() | st.integers(0, 2))
plain = st.tuples(st.just("t"), data, data, st.just(()), st.none())


def digest(*batches: list[Row]) -> Digest:
    """Columns that no row of a batch needs are left out, as a frame may lack them."""
    made = Digest()
    for some in batches:
        topics = [row[0] for row in some]
        made.add(
            SinkRows(
                topics[0] if len(set(topics)) == 1 else topics,
                [row[1] for row in some] if any(row[1] is not None for row in some) else None,
                [row[2] for row in some],
                [row[3] for row in some] if any(row[3] for row in some) else None,
                [row[4] for row in some] if any(row[4] is not None for row in some) else None,
                has_nulls=None in [row[2] for row in some] or 0 < [row[1] for row in some].count(None) < len(some),
            )
        )
    return made


@given(st.lists(rows) | st.lists(plain), st.randoms(use_true_random=False), st.integers(0, 10))
def test_neither_order_nor_batches_change_it(some: list[Row], chance: random.Random, at: int) -> None:
    shuffled = list(some)
    chance.shuffle(shuffled)
    assert digest(some) == digest(shuffled) == digest(some[:at], [], some[at:]) == digest(*([one] for one in some))
    assert digest(some).rows == len(some)


@given(
    st.lists(rows, max_size=4) | st.lists(plain, max_size=4), st.lists(rows, max_size=4) | st.lists(plain, max_size=4)
)
@example([("t", None, b"k", (), None)], [("t", b"k", None, (), None)])
@example([("t", b"k", b"", (), None)], [("t", b"k", None, (), None)])
@example([("t", b"ab", b"c", (), None)], [("t", b"a", b"bc", (), None)])
def test_other_rows_have_another_one(some: list[Row], others: list[Row]) -> None:
    assert (digest(some).sum == digest(others).sum) == (Counter(some) == Counter(others))


@pytest.mark.parametrize(
    ("form", "one", "other"),
    [
        ("{}|{}", (847462, 359508), (622203, 831670)),
        ("key|{},{}", (954774, 965064), (972874, 444387)),
    ],
)
def test_what_two_rows_swap_is_noticed(form: str, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Key and value, or two parts of the value. The sum of these rows' checksums is that of the others."""

    def of(*pairs: tuple[int, int]) -> Digest:
        texts = [form.format(*pair).encode().partition(b"|") for pair in pairs]
        return digest([("t", key, value, (), None) for key, _, value in texts])

    assert of(one, other) != of((one[0], other[1]), (other[0], one[1]))
