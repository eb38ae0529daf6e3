"""Regular expressions of clients, as Kafka's brokers take them: RE2, over the whole of a name (KIP-848, KIP-1152).

An expression takes time by the length of names alone, where Python's own can take exponentially long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PatternError(ValueError):
    """It is no regular expression; the text says why."""


def matcher(pattern: str) -> Callable[[str], object]:
    """What is None for a name that the expression does not match as a whole. Raises `PatternError`."""
    import re2  # a broker is ready sooner, and few clients have expressions

    options = re2.Options()
    options.log_errors = False
    try:
        matches: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise PatternError(error.args[0].decode()) from error
    return matches
