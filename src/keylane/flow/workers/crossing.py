"""How what came of items crosses back from a worker process, whatever user code made it of.

The idea: a class of the user's own files travels to the process as code, so what is made of it there is of a copy that
no module has. On the way back such a class is named, and the parent takes the one that it sent (`Classes`): an error is
of the class that a breaker, a retry rule or a dead letter knows. An error that cannot be pickled, or made again, is
made without its constructor, of its text and of those of its attributes that travel; an `UnloadedError` stands for one
that cannot be made at all. Nothing here raises for what user code made.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import UnloadedError, class_of, line_of, retry_after_ms, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.outcomes import Outcome

    Classes = dict[tuple[str, str], type]
    """The classes that travelled as code, by module and name."""

Value = Any
"""Anything of the user's."""

RESERVED = {"__notes__"}
"""Attributes that Python sets itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an item, or each item of a batch, came to."""

    outcomes: Sequence[Outcome]
    took_ns: int


@dataclass(frozen=True, slots=True)
class _Crossed:
    """A failure with its error as bytes."""

    failure: Failure
    """With an `UnloadedError`, which stands where those bytes cannot be loaded."""
    error: bytes | None


# --- in the process ---


def packed(answer: Answer) -> bytes:
    """An answer as bytes that `loaded` takes."""
    if not any(answer.outcomes):
        return pickle.dumps(answer)
    outcomes = [_crossed(one) for one in answer.outcomes]
    return _dumped(Answer([one if _travels(one) else _unportable(one) for one in outcomes], answer.took_ns))[0]


def _crossed(outcome: Outcome) -> Outcome:
    """The same, of a failure with its error as bytes."""
    if not isinstance(outcome, Failure):
        return outcome
    error = outcome.error
    stand_in = UnloadedError(class_of(error), text_of(error), retry_after_ms(error))
    return _Crossed(outcome.with_error(stand_in), packed_error(error))


def _unportable(outcome: Outcome) -> Outcome:
    """What stands for a value that cannot travel."""
    try:
        _dumped(outcome)
        why = "it cannot be made again"
    except BaseException as error:
        why = line_of(error)
    return _crossed(Failure(HandlerError(f"what the handler returned cannot leave its process: {why}"), final=True))


def packed_error(error: BaseException) -> bytes | None:
    """An error as bytes that `loaded_error` takes; None, when there is no way."""
    for form in (lambda: error, lambda: _Parts(error)):
        try:
            data, classes = _dumped(form())
            again = _loaded(data, classes)
            if (type(again), text_of(again)) == (type(error), text_of(error)):  # some pickle, and come back as others
                return data
        except BaseException:  # whatever a user's error does here
            continue
    return None


class _Parts:
    """An error that is made again without its constructor. It pickles as that error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Value, ...]:
        error = self._error
        if isinstance(error, BaseExceptionGroup):
            return (type(error), (error.message, [_whole_or_parts(one) for one in error.exceptions]))
        attributes = {name: value for name, value in vars(error).items() if name not in RESERVED and _travels(value)}
        return (_made_of, (type(error), text_of(error), attributes))


def _whole_or_parts(error: BaseException) -> BaseException | _Parts:
    return error if _travels(error) else _Parts(error)


def _travels(value: Value) -> bool:
    try:
        data, classes = _dumped(value)
        _loaded(data, classes)
    except BaseException:
        return False
    return True


def _made_of(kind: type[BaseException], text: str, attributes: dict[str, Value]) -> BaseException:
    made = kind.__new__(kind, text)
    vars(made).update(attributes)
    return made


def _dumped(value: Value) -> tuple[bytes, Classes]:
    """Its bytes, and the classes that they name. Raises what the value's own methods raise."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.named


class _Pickler(pickle.Pickler):
    """Names the classes that no module has."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.named: Classes = {}

    def persistent_id(self, value: Value) -> Value:
        if not isinstance(value, type) or value.__module__ == "builtins" or _is_importable(value):
            return None
        name = (value.__module__, value.__name__)
        self.named[name] = value
        return name


def _is_importable(kind: type) -> bool:
    found: Value = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


# --- in the parent ---


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, classes: Classes) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def persistent_load(self, name: Value) -> Value:
        return self._classes[name]


def _loaded(data: bytes, classes: Classes) -> Value:
    """Raises what the value's own methods raise, and `KeyError` for a class that nobody has sent."""
    return _Unpickler(data, classes).load()


def loaded(data: bytes, classes: Classes, count: int) -> Answer:
    """An answer for so many items."""
    try:
        answer: Answer = _loaded(data, classes)
    except BaseException as error:  # of a value of the user's
        text = f"what the handler returned cannot be loaded here: {line_of(error)}"
        return Answer([Failure(HandlerError(text), final=True)] * count, 0)
    outcomes = [_with_its_error(one, classes) if isinstance(one, _Crossed) else one for one in answer.outcomes]
    return Answer(outcomes, answer.took_ns)


def _with_its_error(crossed: _Crossed, classes: Classes) -> Failure:
    return crossed.failure.with_error(loaded_error(crossed.error, classes) or crossed.failure.error)


def loaded_error(data: bytes | None, classes: Classes) -> BaseException | None:
    """None, where it cannot be made again here."""
    if data is None:
        return None
    try:
        error = _loaded(data, classes)
    except BaseException:  # whatever a user's error does here
        return None
    return error if isinstance(error, BaseException) else None
