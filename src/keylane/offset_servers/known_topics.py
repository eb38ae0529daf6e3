"""`KnownTopics`: the topics of the log's cluster, as groups of KIP-848 need them: their ids and their partitions.

They are asked by who needs them (`freshness`): topics that were gone for a moment would take every partition from every
member, so who could not ask goes on with what it knew.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kio.serial.errors import SerialError

from keylane.kafka.link import Link
from keylane.offset_servers.freshness import Freshness
from keylane.wire import codes
from keylane.wire.primitives import FieldError
from keylane.wire.versions import read_response

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address
    from keylane.wire.versions import Entity

T = TypeVar("T")

METADATA, VERSION = 3, 12
"""Version 10 is the first that tells topics' ids (KIP-516)."""
ASK_S = 3.0
"""How long one broker is asked: members wait for it, and their requests for 30 s at most."""
_CORRELATION_ID = bytes(4)
_NO_TAGS = b"\0"
_ALL_TOPICS = b"\0\0\0\0"
"""The request's body: all topics; make none; tell no authorized operations; no tags."""


class Known(NamedTuple):
    """A topic."""

    topic_id: uuid.UUID
    partition_count: int


def ask_topics(brokers: Sequence[Address], login: Login) -> dict[str, Known]:
    """Every topic, as the first broker tells that answers. Blocks. Raises `OSError` when none does."""
    return _first(brokers, login, _ALL_TOPICS, read_topics)


def ask_metadata(brokers: Sequence[Address], login: Login, body: bytes) -> Sequence[Entity]:
    """kio's rows of the topics in the first broker's answer to this request. Blocks. Raises `OSError`."""
    return _first(brokers, login, body, _read)


def _first(brokers: Sequence[Address], login: Login, body: bytes, read: Callable[[bytes], T]) -> T:
    problem = OSError("no broker of the log's cluster is known")
    for address in brokers:
        try:
            with closing(Link(address, login, ASK_S)) as link:
                return read(link.ask(METADATA, VERSION, _NO_TAGS + body))
        except OSError as error:
            problem = error
    raise problem


def _read(answer: bytes) -> Sequence[Entity]:
    try:
        topics: Sequence[Entity] = read_response("metadata", VERSION, _CORRELATION_ID + answer)[0].topics
    except (SerialError, FieldError) as error:
        raise OSError(f"a broker's answer to Metadata cannot be read: {error}") from error
    return topics


def read_topics(answer: bytes) -> dict[str, Known]:
    """Of the answer to Metadata, from the tags of its header on. Topics that their broker cannot tell of are left out:
    only one that has them all is believed. Raises `OSError`."""
    topics = _read(answer)
    if any(one.error_code not in (codes.NONE, codes.LEADER_NOT_AVAILABLE) for one in topics):
        raise OSError("a broker does not know all topics yet")
    return {one.name: Known(one.topic_id, len(one.partitions)) for one in topics if one.topic_id is not None}


class KnownTopics:
    """A coordinator's `Topics`. Belongs to the event loop's thread."""

    def __init__(self, ask: Callable[[], Mapping[str, Known]], hidden: str) -> None:
        """`ask` blocks, in a thread, and raises `OSError`; `hidden` is the name of a topic that nobody is told of."""
        self._ask = ask
        self._hidden = hidden
        self._topics: Mapping[str, Known] = {}
        self._names: dict[uuid.UUID, str] = {}
        self.version = 0
        """Another one after each change; changed here only."""
        self._freshness = Freshness("topics of the log's cluster", self._learn)

    def get(self, name: str) -> Known | None:
        return self._topics.get(name)

    def names(self) -> Iterable[str]:
        return self._topics.keys()

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return None if topic_id is None else self._names.get(topic_id)

    async def be_fresh(self, within_s: float) -> None:
        """Return when what is known is from so long before this call, or later; or when nobody has answered now."""
        await self._freshness.reach(within_s)

    async def _learn(self) -> None:
        found = await asyncio.to_thread(self._ask)
        self._take({name: one for name, one in found.items() if name != self._hidden})

    def _take(self, found: dict[str, Known]) -> None:
        if found != self._topics:
            self._topics = found
            self._names = {one.topic_id: name for name, one in found.items()}
            self.version += 1
