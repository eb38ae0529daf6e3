"""What handlers return and raise."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.consumer.returns import outcome_of
from keylane.errors import Fatal, HandlerError, UsageError
from keylane.flow.outcomes import Failure
from keylane.flow.workers.calls import failure_of
from keylane.records import Output

OUT = Output("t")


@pytest.mark.parametrize(
    ("result", "outcome"), [(None, None), ([], None), ((), None), (OUT, (OUT,)), ([OUT, OUT], [OUT, OUT])]
)
def test_what_a_handler_may_return(result: Any, outcome: Any) -> None:
    assert outcome_of(result) == outcome


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (5, "the handler returned a value of type int; return None, an Output, or a list of them"),
        (b"x" * 200, "returned a value of type bytes; return"),
        ([OUT, "a"], "a list with a value of type str at index 1"),
        ({"t": 1}, "returned a value of type dict"),
    ],
)
def test_another_type_is_a_failure_that_says_what_it_was(result: Any, says: str) -> None:
    outcome = outcome_of(result)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, HandlerError)
    assert says in str(outcome.error)
    assert len(str(outcome.error)) < 200
    assert outcome.final, "another attempt would return the same"


def test_a_coroutine_is_named_with_the_way_out() -> None:
    async def handler() -> None:
        pass

    outcome = outcome_of(handler())
    assert isinstance(outcome, Failure)
    assert "async def" in str(outcome.error)


def test_fatal_is_final_and_other_errors_are_not() -> None:
    assert failure_of(Fatal("no use")).final
    assert failure_of(UsageError("mend it")).final
    assert not failure_of(ValueError("once more")).final
    assert not failure_of(SystemExit(3)).final
