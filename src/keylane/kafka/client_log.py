"""What is logged of a client: a line, but not the same one again and again."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING

from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logger_of("keylane.kafka")

REPEAT_AFTER_S = 30.0
"""An error that goes on is logged again after this long."""

_NUMBERS = re.compile(r"\d+")
"""What differs between two lines that say the same."""


class Repeats:
    """Says what was logged lately. Thread safety: good enough for logging, from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._logged: dict[object, float] = {}

    def is_new(self, what: object) -> bool:
        """Whether `what` was not asked about within the last `REPEAT_AFTER_S`."""
        now = self._clock()
        if now - self._logged.get(what, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        self._logged[what] = now
        return True


class ClientLog:
    """Where librdkafka's own lines go: `logging` under `keylane.kafka`, but not the same one again and again.

    A client whose broker is away tries to connect ten times a second, and says so each time.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._repeats = Repeats(clock)

    def log(self, level: int, form: str, *arguments: object) -> None:
        """What confluent-kafka calls: a facility, the client's name, and the text."""
        if self._repeats.is_new(_NUMBERS.sub("", form % arguments)):
            logger.log(level, form, *arguments)
