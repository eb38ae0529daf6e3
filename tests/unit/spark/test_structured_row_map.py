"""`parallel_map`'s options: those of every flow, and what rows cannot have."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import keylane as kl
from keylane.spark import parallel_map
from keylane.spark.structured.parallel_map import RowMap


def function(row: Any) -> Any:
    return row


@pytest.mark.parametrize("delivery", ["at_most_once", "almost_once", "transactional", kl.ExactlyOnce("a.db")])
def test_guarantees_that_dataframes_cannot_give_are_refused(delivery: Any) -> None:
    with pytest.raises(kl.UsageError, match=" is for pipelines in one process and in lanes: "):
        parallel_map(function, "a int", delivery=delivery)
    assert parallel_map(function, "a int").guarantee == "at_least_once"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": kl.Batch(3)}, "parallel_map has no batch: rows go to the function one at a time"),
        ({"rates": kl.Rates(per_key=1)}, "parallel_map has no rates: "),
        ({"not_before": function}, "parallel_map has no not_before: "),
        ({"on_exhausted": kl.Skip()}, "with outcome=True it is a row of its own"),
        ({"traversal": "depth_first"}, "the rows of a task are one source"),
        ({"max_concurrency": "auto"}, "each task would look for a limit of its own"),
        ({"tracing": "on"}, "rows have no headers"),
        ({"threads": 4}, "parallel_map has no option 'threads': give workers=Threads(count)"),
        ({"timeout_ms": 4}, "parallel_map has no option 'timeout_ms': give handler_timeout_ms"),
        ({"topics": ["t"]}, "parallel_map has no option 'topics': it takes handler, "),
    ],
)
def test_what_rows_cannot_have_is_refused_with_the_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        parallel_map(function, "a int", **options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_it_has_the_options_of_every_flow() -> None:
    known = set(inspect.signature(parallel_map).parameters)
    assert {one.name for one in fields(kl.Flow)} < known
    assert known == {one.name for one in fields(RowMap)}
