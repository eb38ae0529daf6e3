"""Errors of anybody's are told without an error, whatever they are."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given

from keylane.errors import Fatal, OutageError, PeerError, RetryAfter, UndecodableError
from keylane.flow.breakers import Breakers
from keylane.flow.workers.calls import failure_of
from keylane.foreign_errors import (
    MAX_ERRORS,
    MAX_TEXT,
    MAX_WAIT_MS,
    UnloadedError,
    class_of,
    is_one_of,
    judged_decoding,
    leaves_of,
    line_of,
    retry_after_ms,
    text_of,
)
from keylane.options import Breaker
from kit.awkward import SPECS, NotAgainError, SaysNothingError, Spec, made


@given(SPECS)
def test_any_error_has_a_class_a_text_and_a_line_that_have_bytes_and_move_no_cursor(spec: Spec) -> None:
    error = made(spec)
    for text in (class_of(error), text_of(error), line_of(error)):
        assert text.encode() is not None, "it has bytes"
        assert "\x1b" not in text
        assert len(text) < 10 * MAX_TEXT + 200
    assert "\n" not in line_of(error)
    assert retry_after_ms(error) is None
    assert not is_one_of(error, Fatal)
    assert failure_of(error).final is False


def test_an_error_is_told_as_it_says_itself() -> None:
    assert class_of(ValueError("x")) == "ValueError"
    assert class_of(NotAgainError(1, 2)) == "kit.awkward.NotAgainError"
    assert text_of(ValueError("two\nlines")) == "two\nlines"
    assert line_of(ValueError("two\n lines")) == "ValueError: two lines"
    assert line_of(ValueError()) == "ValueError"
    assert text_of(SaysNothingError()) == "(its text cannot be made: AttributeError)"
    assert text_of(ValueError("a \ud83d \x07")) == "a \\ud83d \\x07"
    assert text_of(ValueError("x" * 5_000)) == "x" * MAX_TEXT


def test_what_an_error_says_of_its_own_class_is_not_asked() -> None:
    class LiesAboutItselfError(Exception):
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise LookupError("no class")

    error = LiesAboutItselfError("x")
    assert line_of(error) == "LiesAboutItselfError: x"
    assert not failure_of(error).final


def test_of_a_group_the_first_that_is_none_is_told_with_how_many_more() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [KeyError("k")]), ValueError("v"), OSError("o")])
    assert (class_of(group), text_of(group)) == ("KeyError", "'k' (and 2 more errors)")
    assert line_of(ExceptionGroup("g", [ValueError("v"), OSError("o")])) == "ValueError: v (and 1 more error)"
    deep: Exception = ValueError("v")
    for _ in range(10 * MAX_ERRORS):
        deep = ExceptionGroup("g", [deep])
    assert line_of(deep)
    assert list(leaves_of(deep)) == []


def test_a_group_is_what_it_holds() -> None:
    """What `asyncio.TaskGroup` raises means what its tasks raised."""

    async def fan_out(*errors: Exception) -> None:
        async def one(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(one(error))

    def raised(*errors: Exception) -> BaseException:
        with pytest.raises(BaseExceptionGroup) as found:
            asyncio.run(fan_out(*errors))
        return found.value

    assert failure_of(raised(ValueError("v"), Fatal("never"))).final
    assert not failure_of(raised(ValueError("v"), OSError("o"))).final
    assert retry_after_ms(raised(RetryAfter(20), ValueError("v"), RetryAfter(3_000))) == 3_000
    breakers = Breakers(Breaker(errors=ConnectionError), lambda _: None, lambda one: one)
    assert breakers.counts(raised(ValueError("v"), ConnectionResetError()))
    assert not breakers.counts(raised(ValueError("v")))
    assert not breakers.counts(PeerError("Kafka's"))


def test_a_delay_that_no_clock_has_is_the_longest_there_is() -> None:
    assert retry_after_ms(RetryAfter(10**400)) == MAX_WAIT_MS
    assert retry_after_ms(RetryAfter(-5)) == 0


def test_what_an_error_of_a_deserializer_means() -> None:
    """By its class, and by what it came of; what nobody knows stays as it is."""

    class OwnError(Exception):
        """As people raise them around what a library says."""

    def raised(error: Exception, cause: Exception | None) -> Exception:
        try:
            raise error from cause
        except Exception as found:
            return judged_decoding(found)

    assert isinstance(raised(OwnError(), ValueError("no JSON")), UndecodableError)
    assert isinstance(raised(UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), None), UndecodableError)
    assert isinstance(raised(OwnError(), ConnectionRefusedError()), OutageError)
    assert isinstance(raised(ValueError(), TimeoutError()), OutageError)
    for own in (OwnError(), Fatal("never"), RetryAfter(5), PeerError("Kafka's")):
        assert raised(own, None) is own
    error = raised(OwnError("why"), ValueError())
    assert (class_of(error).rpartition(".")[2], text_of(error)) == ("OwnError", "why")


def test_what_stands_for_an_error_of_another_process_travels() -> None:
    again = pickle.loads(pickle.dumps(UnloadedError("app.Down", "no answer", 7)))
    assert (class_of(again), text_of(again), retry_after_ms(again)) == ("app.Down", "no answer", 7)
