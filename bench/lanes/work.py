"""The work of all contestants, and how it is timed: on the host's clock, where the handlers run.

A resource notes when each record began and ended and writes that to a file when its worker closes it. The same pipeline
therefore measures itself in one process and in lanes, and no counter of the engine is asked.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from engine.rows import Ordering

Kind = Literal["sleep", "burn", "timed"]
BURN_ROUNDS = 20_000
"""About 2 ms of pure Python on one core."""


@dataclass(slots=True)
class Tally:
    """Begin, end (seconds since the epoch) and key of each record that one worker ran."""

    took: list[tuple[float, float, str]] = field(default_factory=list)

    def write(self, folder: str) -> None:
        Path(folder, f"{uuid.uuid4()}.json").write_text(json.dumps(self.took))


@dataclass(frozen=True, slots=True)
class Timed:
    """What all workers of a run noted."""

    workers: list[list[tuple[float, float, str]]]

    @classmethod
    def read(cls, folder: Path) -> Timed:
        found = [[tuple(one) for one in json.loads(file.read_text())] for file in folder.glob("*.json")]
        return cls([one for one in found if one])

    @property
    def took(self) -> list[tuple[float, float, str]]:
        return [one for worker in self.workers for one in worker]

    @property
    def rate_together(self) -> float:
        """Records a second while all workers had some: from the last one's first record to the first one's last."""
        since = max(min(begin for begin, _, _ in worker) for worker in self.workers)
        until = min(max(end for _, end, _ in worker) for worker in self.workers)
        if until <= since:
            return 0.0
        return sum(since <= end <= until for _, end, _ in self.took) / (until - since)

    @property
    def first(self) -> float:
        return min(begin for begin, _, _ in self.took)

    @property
    def seconds(self) -> float:
        """From the first record's begin to the last one's end."""
        return max(end for _, end, _ in self.took) - self.first

    def limit_s(self, ordering: Ordering, concurrency: int) -> float:
        """The least time for these handlers: side by side, and one after another within a key or the one partition."""
        by_key: dict[str, float] = {}
        for begin, end, key in self.took:
            lane = key if ordering == "key" else ""
            by_key[lane] = by_key.get(lane, 0.0) + end - begin
        side_by_side = sum(by_key.values()) / concurrency
        return side_by_side if ordering == "unordered" else max(side_by_side, *by_key.values())


def make_pipeline(
    servers: str, topic: str, folder: Path, kind: Kind, ordering: Ordering, concurrency: int
) -> kl.Pipeline:
    """The pipeline of one run, in a group of its own."""
    place = str(folder)

    @asynccontextmanager
    async def tally_async() -> AsyncIterator[Tally]:
        made = Tally()
        yield made
        made.write(place)

    @contextmanager
    def tally() -> Iterator[Tally]:
        made = Tally()
        yield made
        made.write(place)

    async def sleep(record: kl.Record, context: kl.Context) -> None:
        begin = time.time()
        await asyncio.sleep(int(record.value or 0) / 1e6)
        context.resource.took.append((begin, time.time(), (record.key or b"").decode()))

    async def timed(record: kl.Record, context: kl.Context) -> None:
        """A value is when it was made, and what its handler sleeps; its begin is when it was made."""
        made, sleep_us = (record.value or b"").split()
        await asyncio.sleep(int(sleep_us) / 1e6)
        context.resource.took.append((float(made), time.time(), ""))

    def burn(record: kl.Record, context: kl.Context) -> None:
        begin = time.time()
        sum(range(BURN_ROUNDS))
        for _ in range(BURN_ROUNDS):
            pass
        context.resource.took.append((begin, time.time(), (record.key or b"").decode()))

    handler: Any = {"sleep": sleep, "burn": burn, "timed": timed}[kind]
    return kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": f"bench-{uuid.uuid4()}"},
        topics=[topic],
        handler=handler,
        resource=tally if kind == "burn" else tally_async,
        ordering=ordering,
        max_concurrency=concurrency,
        workers=kl.Threads(min(concurrency, 4)) if kind == "burn" else None,
        offset_reset="earliest",
    )
