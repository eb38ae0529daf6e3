"""`TaskIds`: the transactional ids of a worker process. Pure.

The idea: a broker keeps every transactional id for a week, so they are used again; but EndTxn says whether a listed
transaction was committed only as long as nobody has initialised its id since. So an id serves again only in a later
batch of the same query, which Spark begins when everything of this one is ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TaskIds:
    """The transactional ids of one worker process."""

    def __init__(self, make: Callable[[], str]) -> None:
        """`make` gives a word that nobody else has."""
        self._make = make
        self._last: dict[tuple[str, str], list[tuple[int, str]]] = {}
        """By prefix and query: the batch in which each id served last."""

    def take(self, prefix: str, query: str, batch: int) -> str:
        """An id for one transaction of this batch."""
        known = self._last.setdefault((prefix, query), [])
        for index, (last, name) in enumerate(known):
            if last < batch:
                known[index] = (batch, name)
                return name
        name = prefix + self._make()
        known.append((batch, name))
        return name
