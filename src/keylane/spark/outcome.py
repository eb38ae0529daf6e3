"""What a lane returns to its driver: its last snapshot, and its failure as a value.

An exception that leaves a Spark task would reach the driver as text in a Java stack trace. A failure as a value keeps
the original error, so that a `HandlerError` in a lane is a `HandlerError` for the user.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from keylane.errors import FencedError, HandlerError, InternalError, PeerError, TopicDeletedError, UsageError
from keylane.foreign_errors import short_class_of, text_of

if TYPE_CHECKING:
    from keylane.consumer.snapshot import Snapshot

LASTING_ERRORS = (HandlerError, UsageError, InternalError, TopicDeletedError, FencedError)
"""Errors that a new start of the lane would meet again, or that it would bring upon another: they end the query."""

BRIEF_BYTES = 4_096
"""Of an error that is to go at once, and of its text."""

Ending = Literal["work done", "stopped", "driver gone", "executor gone", "failed"]


@dataclass(frozen=True, slots=True)
class LaneFailure:
    """An exception by value."""

    kind: str
    text: str
    trace: str
    lasting: bool
    """Whether a new start of the lane would meet it again."""
    pickled: bytes | None
    """The exception itself, when it can be pickled."""

    @classmethod
    def of(cls, error: BaseException) -> LaneFailure:
        trace = "".join(traceback.format_exception(error))
        text = text_of(error)
        lasting = isinstance(error, LASTING_ERRORS)
        return cls(short_class_of(error), text, trace, lasting, _pickled(error))

    def exception(self, lane: int) -> BaseException:
        """The original exception with the lane's traceback as a note, or a `PeerError` that quotes it."""
        error = self._loaded() or PeerError(f"lane {lane} failed: {self.kind}: {self.text}")
        error.add_note(f"in lane {lane}:\n{self.trace}")
        return error

    @property
    def brief(self) -> LaneFailure:
        """The same for a message that must go at once: a few kilobytes at most."""
        pickled = self.pickled if self.pickled is not None and len(self.pickled) <= BRIEF_BYTES else None
        return replace(self, text=self.text[:BRIEF_BYTES], trace="", pickled=pickled)

    @property
    def original(self) -> BaseException:
        """The original exception, or a `HandlerError` that quotes it."""
        return self._loaded() or HandlerError(f"{self.kind}: {self.text}")

    def _loaded(self) -> BaseException | None:
        if self.pickled is None:
            return None
        try:
            error = pickle.loads(self.pickled)  # our own lane's or driver's, over an authenticated channel
        except Exception:  # an exception class that is not here: quote it instead
            return None
        return error if isinstance(error, BaseException) else None


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # some exceptions pickle, and then do not load
    except BaseException:  # whatever a user's exception does here, its text and trace still travel
        return None
    return data


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """How one run of a lane ended."""

    ending: Ending
    snapshot: Snapshot | None
    failure: LaneFailure | None = None
