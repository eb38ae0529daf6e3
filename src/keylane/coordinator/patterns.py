"""Regular expressions of clients, as Kafka's brokers take them: RE2, over the whole of a name (KIP-848, KIP-1152).

An expression takes time by its own length and that of names, where Python's own can take exponentially long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_LETTERS = 2_000
"""Of an expression: 40,000 are compiled in 0.3 s, and 120,000 are matched with a few thousand names in minutes."""
MAX_COMPILED_BYTES = 1024 * 1024
"""RE2 gives up an expression that needs more, after a few milliseconds."""


class PatternError(ValueError):
    """It is no regular expression; the text says why."""


def matcher(pattern: str) -> Callable[[str], object]:
    """What is None for a name that the expression does not match as a whole. Raises `PatternError`."""
    if len(pattern) > MAX_LETTERS:
        raise PatternError(f"it has {len(pattern):,} letters, and {MAX_LETTERS:,} are taken: name a part of the topics")
    import re2  # a broker is ready sooner, and few clients have expressions

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_COMPILED_BYTES
    try:
        matches: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise PatternError(error.args[0].decode()) from error
    return matches
