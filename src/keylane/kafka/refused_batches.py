"""`Suspects`: whose fault is it that the broker refused a batch?

The idea: Kafka answers for a batch as a whole, so every output in it is told the error of one. An output that is
refused with others is only suspected; for a while outputs are produced one at a time, and one that is refused again is
at fault.

Thread safety: `accuses` and `acquit` are for the thread that serves reports; `are_about` is for any.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from keylane.kafka.faults import REFUSED_BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from keylane.consumer.outputs import Delivery

ALONE_S = 60.0
"""How long outputs are produced one at a time after a batch was refused: so long a suspect may take to come back."""

MOST = 10_000
"""How many suspects are remembered; the oldest are forgotten, and suspected anew."""

Source: TypeAlias = tuple[str, bool, int]


class Suspects:
    """The outputs of one producer that were in a batch that was refused."""

    __slots__ = ("_alone_until", "_clock", "_suspected")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._suspected: dict[Source, None] = {}
        self._alone_until = 0.0

    @property
    def are_about(self) -> bool:
        """Whether outputs are to be produced one at a time."""
        return bool(self._alone_until) and self._clock() < self._alone_until

    def accuses(self, delivery: Delivery, index: int, error: KafkaError) -> bool:
        """Whether this failure is the output's own. It is not when its batch was refused, and it had company."""
        if error.code() not in REFUSED_BATCHES:
            return True
        self._alone_until = self._clock() + ALONE_S
        source = _source(delivery, index)
        if source in self._suspected:
            return True
        self._suspected[source] = None
        if len(self._suspected) > MOST:
            del self._suspected[next(iter(self._suspected))]
        return False

    def acquit(self, delivery: Delivery, index: int) -> None:
        """It was delivered."""
        if self._suspected:
            self._suspected.pop(_source(delivery, index), None)


def _source(delivery: Delivery, index: int) -> Source:
    """The same for each attempt of its record, and another one for the dead letter."""
    return delivery.item.name, delivery.is_dead_letter, index
