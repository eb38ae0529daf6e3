"""`TopicIds`: the ids of topics in the log's cluster, asked by who has to know them as they are now.

The idea: whoever fetches offsets waits for one answer of a broker that was asked after the fetch came, or just before.
All who come while a broker is asked wait for the next question, which is for all of their topics.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.offset_servers.known_topics import ask_metadata
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.primitives import compact_array_length, compact_string

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address

logger = logger_of("keylane.offsets")

RECENT_S = 0.1
"""How old an answer may be: a broker may be further behind."""
_NO_ID, _NO_TAGS = bytes(16), b"\0"
_MAKE_NONE, _NO_OPERATIONS = b"\0", b"\0"


def ask_ids(brokers: Sequence[Address], login: Login, names: Collection[str]) -> Mapping[str, UUID]:
    """Those of the topics that are there, as the first broker tells that answers. Blocks. Raises `OSError` when none
    does."""
    rows = (_NO_ID + compact_string(name) + _NO_TAGS for name in names)
    body = compact_array_length(len(names)) + b"".join(rows) + _MAKE_NONE + _NO_OPERATIONS + _NO_TAGS
    found = ask_metadata(brokers, login, body)
    return {
        one.name: one.topic_id
        for one in found
        if one.topic_id is not None and one.error_code in (codes.NONE, codes.LEADER_NOT_AVAILABLE)
    }


class TopicIds:
    """Belongs to the event loop's thread."""

    def __init__(self, ask: Callable[[Collection[str]], Mapping[str, UUID]]) -> None:
        """`ask` blocks, in a thread, and raises `OSError`."""
        self._ask = ask
        self._wanted: set[str] = set()
        self._next: asyncio.Task[Mapping[str, UUID] | None] | None = None
        """The question that is not asked yet."""
        self._turn = asyncio.Lock()
        self._asked_s: dict[str, float] = {}
        """When each topic was last asked for, of those of late."""
        self._ids: dict[str, UUID] = {}
        """Of these that are there."""
        self._is_answered = True

    def recent(self, names: Iterable[str]) -> Mapping[str, UUID] | None:
        """As they were just now; None where one was not asked for."""
        since_s = asyncio.get_running_loop().time() - RECENT_S
        if any(self._asked_s.get(name, since_s - 1) < since_s for name in names):
            return None
        return {name: self._ids[name] for name in names if name in self._ids}

    async def of(self, names: Collection[str]) -> Mapping[str, UUID] | None:
        """As they are, or were just now; None when nobody answers."""
        found = self.recent(names)
        if found is not None:
            return found
        self._wanted.update(names)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._learn())
        return await asyncio.shield(self._next)

    async def _learn(self) -> Mapping[str, UUID] | None:
        async with self._turn:
            names, self._wanted, self._next = self._wanted, set(), None
            began_s = asyncio.get_running_loop().time()
            try:
                found = await asyncio.to_thread(self._ask, names)
            except OSError as error:
                if self._is_answered:
                    logger.warning("the ids of topics in the log's cluster cannot be asked: %s", error)
                self._is_answered = False
                return None
            self._is_answered = True
            old_s = began_s - RECENT_S
            self._asked_s = {name: at for name, at in self._asked_s.items() if at >= old_s} | dict.fromkeys(
                names, began_s
            )
            earlier = {name: one for name, one in self._ids.items() if name in self._asked_s and name not in names}
            self._ids = earlier | dict(found)
            return found
