"""Whether a dead-letter topic keeps what is put into it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.memory_topics import LETTERS, faults
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

logger = logger_of("keylane.kafka")


def warn_of_letters(kafka: Mapping[str, Any], topic: str) -> None:
    """Log what is wrong with the topic, once in a process; nothing where it is not there, or may not be looked at."""
    try:
        wrong = faults(LETTERS, Admin(dict(kafka)).topic_settings(topic), 1)
    except PeerError:
        return
    if wrong:
        _tell(topic, "; ".join(wrong))


@functools.cache
def _tell(topic: str, wrong: str) -> None:
    logger.warning("dead-letter topic %r: %s", topic, wrong)
