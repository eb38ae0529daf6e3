"""Outputs to a topic that the pipeline reads itself are refused: each would come back as a record, without end.

The idea: `Pipeline` refuses what it can see when it is made (its dead-letter topic, its `outputs`); what a handler
returns is seen here, before anything of it is produced, and ends the run whatever `on_exhausted` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.flow.outcomes import Failure
from keylane.records import Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.pipeline import Pipeline
    from keylane.records import Output


class OwnTopicError(UsageError):
    """An output to a topic that the pipeline reads."""


class OwnTopics:
    """Tells them. Thread safety: any thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._others: set[str] = set()
        """Topics of outputs that the pipeline does not read: they are looked up once."""

    def refused(self, outcome: Sequence[Output] | Returned) -> Failure | None:
        """Why these outputs may not be produced; None when they may."""
        for output in outcome.outputs if isinstance(outcome, Returned) else outcome:
            topic = output.topic
            if topic in self._others:
                continue
            if self._pipeline.reads_topic(topic):
                return Failure(OwnTopicError(self._pipeline.own_topic(f"an Output is for {topic!r}")), halts=True)
            self._others.add(topic)
        return None
