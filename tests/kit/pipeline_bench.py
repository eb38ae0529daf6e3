"""What contract tests of pipelines have in common: where one runs, and what is seen of it from outside."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import keylane as kl
from keylane.kafka.bulk import read_to_end
from kit.contract import HANG_S, QUICK_S, ignore, other_than_usual
from kit.outputs import source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS = 60
PATIENCE_S = 180.0


class Running(Protocol):
    """A pipeline that runs until what is there now is done."""

    def snapshot(self) -> kl.Snapshot: ...
    def stop(self) -> None: ...
    def wait(self) -> None: ...


class InProcess:
    def __init__(self, pipeline: kl.Pipeline, *, endless: bool = False) -> None:
        self._consumer = kl.ParallelConsumer(pipeline, ending_offsets=None if endless else "latest")
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.snapshot, self.stop = self._consumer.snapshot, self._consumer.stop

    def _run(self) -> None:
        try:
            with self._consumer:
                self._consumer.run()
        except BaseException as error:  # raised by `wait`
            self._error = error

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


class OnALane:
    def __init__(self, spark: Any, pipeline: kl.Pipeline, *, endless: bool = False) -> None:
        trigger = None if endless else {"availableNow": True}
        self._query = kl.spark.start(pipeline, spark, lanes=1, trigger=trigger, members="dynamic", max_lane_failures=0)
        self.snapshot, self.stop = self._query.snapshot, self._query.stop

    def wait(self) -> None:
        assert self._query.awaitTermination(PATIENCE_S), self._query.lanes


class PipelineBench:
    """Work of one test, in one of the two places."""

    def __init__(self, work: Any, begin: Callable[..., Running], folder: Path, ignores: str | None = None) -> None:
        """`ignores`: an option that pipelines are given and do not have."""
        self.work, self.folder = work, folder
        self.ignores = ignores
        self.has_ignored = False
        self.hang_s = HANG_S if ignores is None else QUICK_S
        """How long a handler hangs that nothing ends."""
        self.given: set[str] = set()
        """Options that a pipeline had another value of than pipelines usually have here."""
        self._begin = begin
        self._usual = work.pipeline()
        work.fill(RECORDS)

    def begin(self, pipeline: kl.Pipeline, *, endless: bool = False) -> Running:
        self.given |= other_than_usual(pipeline, self._usual)
        if self.ignores is not None:
            self.has_ignored |= ignore(self.ignores, pipeline, self._usual)
        return self._begin(pipeline, endless=endless)

    def until(self, condition: Callable[[], object], what: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + (PATIENCE_S if self.ignores is None else 5 * QUICK_S)
        while not condition():
            assert time.monotonic() < deadline, what()
            time.sleep(0.01)

    def run(self, handler: Callable[..., Any], **options: Any) -> kl.Snapshot:
        running = self.begin(self.work.pipeline(handler, **options))
        running.wait()
        return running.snapshot()

    def told(self, name: str) -> list[str]:
        """What outputs say in the header `name`, in the order of their partitions."""
        return [text for log in self.told_by_partition(name) for text in log]

    def told_by_partition(self, name: str) -> list[list[str]]:
        logs: dict[int, list[tuple[int, str]]] = {}
        for batch in read_to_end(self.work.servers, self.work.output):
            for one in batch:
                found = next((value for key, value in one.headers if key == name and value is not None), None)
                if found is not None:
                    logs.setdefault(one.partition, []).append((one.offset, found.decode()))
        return [[text for _, text in sorted(log)] for _, log in sorted(logs.items())]

    def all_once(self) -> bool:
        seen = self.work.outputs()
        return not (seen.lost or seen.repeated or seen.foreign) and self.work.lag() == 0

    def file(self, name: str) -> list[str]:
        found = self.folder / name
        return found.read_text().splitlines() if found.exists() else []


def telling(output: str, tell: Callable[[kl.Record, kl.Context], str] = lambda *_: "", pause_s: float = 0.0) -> Any:
    """A handler that copies its record and tells something in the header `told`."""

    async def copy(record: kl.Record, context: kl.Context) -> kl.Output:
        if pause_s:
            await asyncio.sleep(pause_s)
        headers = [source_of(record), ("told", tell(record, context).encode())]
        return kl.Output(output, record.key, record.value, headers=headers, partition=record.partition)

    return copy
