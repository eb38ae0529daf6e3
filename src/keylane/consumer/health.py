"""`Health`: what a liveness and a readiness probe are told, each with the reason when the answer is no.

The idea: a restart mends what is wrong inside the process, and nothing else. So a loop that stands and a consumer that
has failed are faults; a broker that does not answer, or a rebalance that takes long, only makes it not ready.
"""

from __future__ import annotations

from dataclasses import dataclass

from keylane.errors import KeylaneError
from keylane.foreign_errors import one_line, short_class_of

ANSWER_WITHIN_S = 5.0
"""A loop that says nothing for so long stands: its turns take milliseconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """Of one consumer, or of a query of lanes."""

    fault: str | None = None
    """Why it is not alive; None while it is."""
    unready: str | None = None
    """Why it is not ready; None while it is a member of its group that has what it was given, or soon will."""

    @classmethod
    def failed(cls, error: BaseException) -> Health:
        """After a failure. What the user's code raised is named and not quoted: it may hold what is in a record."""
        cause = error if error.__cause__ is None else error.__cause__
        is_ours = isinstance(cause, KeylaneError)
        fault = "it failed: " + (one_line(error) if is_ours else short_class_of(cause))
        return cls(fault, fault)
