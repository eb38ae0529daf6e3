"""What the group has committed at the end of a query, from the broker and not from the lanes: its last word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import InternalError, PeerError
from keylane.telling import logger_of

if TYPE_CHECKING:
    from keylane.spark.plan import LanePlan
    from keylane.spark.publisher import Publisher

logger = logger_of(__name__)


def note_commits(plan: LanePlan, publisher: Publisher, *, must_be_whole: bool) -> None:
    """Asks the broker, for the last progress; with ending offsets and `must_be_whole`, they must have been reached.

    Raises `InternalError` when they have not, and `PeerError` when the broker does not tell.
    """
    ends = plan.ending_offsets
    try:
        committed = plan.committed()
    except PeerError as error:
        if ends is not None and must_be_whole:
            raise
        logger.warning("what the group has committed in the end is not known: %s", error)
        return
    publisher.note_committed(committed)
    if ends is None or not must_be_whole:
        return
    short = [
        f"{topic}-{partition} at {committed.get((topic, partition))} of {end}"
        for (topic, partition), end in ends.items()
        if committed.get((topic, partition), 0) < end
    ]
    if short:
        raise InternalError(
            f"all lanes have ended, but group {plan.query.group} has not committed all: {', '.join(short)}"
        )
