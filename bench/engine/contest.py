"""Runs the rows: contestants as warm processes that take turns, on topics that are filled once.

While one contestant works, the others wait for their next line and use no processor. The first contestant of a turn
changes from turn to turn, so that no one always follows the same neighbour.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from peers import jvm, processor_s

from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.rows import Row, Topic

THREADS, ASYNCIO, JVM = "keylane threads", "keylane asyncio", "JVM Parallel Consumer"
JVM_HEAP_MB = 1_024
RUN_LIMIT_S = 300
"""A run takes up to half a minute; a contestant that takes ten times as long hangs, and is killed."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one contestant."""

    from_subscribe_s: float
    from_first_s: float
    limit_s: float
    records: int
    processor_s: float
    """Processor time of the contestant's process, all threads: what a busy machine does not distort."""
    load: float
    """The machine's load average over the last minute when the run began."""

    @property
    def records_per_s(self) -> float:
        return self.records / self.from_first_s

    @property
    def processor_us_a_record(self) -> float:
        return self.processor_s / self.records * 1e6


@dataclass(slots=True)
class Standing:
    """All runs of one contestant on one row."""

    results: list[Result] = field(default_factory=list)

    def median(self, figure: Callable[[Result], float]) -> float:
        return statistics.median(figure(result) for result in self.results)

    @property
    def times_the_limit(self) -> float:
        return self.median(lambda result: result.from_first_s / result.limit_s)


def keylane(bootstrap: str, mode: str, processors: str = "one") -> list[str]:
    """The command of keylane as a contestant: "threads" or "asyncio", on "one" processor or on "all"."""
    return [sys.executable, "-m", "engine.keylane_run", bootstrap, mode, processors]


def keylane_and_peer(bootstrap: str, *, with_jvm: bool) -> dict[str, list[str]]:
    """The commands of the contestants that the page compares, by their names."""
    ours = {THREADS: keylane(bootstrap, "threads"), ASYNCIO: keylane(bootstrap, "asyncio")}
    return ours | ({JVM: jvm.command(jvm.BENCH, bootstrap, heap_mb=JVM_HEAP_MB)} if with_jvm else {})


class Contest:
    """The contestants against one broker. A context manager: their processes end with it."""

    def __init__(self, bootstrap: str, commands: Mapping[str, list[str]]) -> None:
        """`commands` start the contestants, by their names."""
        self._bootstrap = bootstrap
        self._commands = commands
        self._stack = contextlib.ExitStack()
        self._filled: set[Topic] = set()
        self._processes: dict[str, jvm.LineProcess] = {}

    def __enter__(self) -> Self:
        for name, command in self._commands.items():
            self._processes[name] = self._stack.enter_context(jvm.LineProcess(command))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fill(self, topics: Sequence[Topic]) -> None:
        """Make the topics that are not there yet, and fill them."""
        wanted = [topic for topic in dict.fromkeys(topics) if topic not in self._filled]
        admin = Admin({"bootstrap.servers": self._bootstrap})
        for topic in wanted:
            assert admin.create_topics({self._name(topic): topic.partitions})
            with BulkProducer(self._bootstrap) as producer:
                for key, value, partition in topic.content():
                    producer.produce(Output(self._name(topic), key=key, value=value, partition=partition))
        self._filled |= set(wanted)

    @property
    def processes(self) -> dict[str, jvm.LineProcess]:
        """The contestants by name."""
        return self._processes

    def warm_up(self, row: Row) -> None:
        """One run of each contestant that does not count."""
        for contestant in self._processes:
            self._run(contestant, row)

    def play(self, row: Row, repeat: int, report: Callable[[str, Result], None]) -> dict[str, Standing]:
        """The row `repeat` times by each contestant, in turns."""
        names = [name for name in self._processes if takes_part(name, row)]
        standings = {name: Standing() for name in names}
        for turn in range(repeat):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                result = self._run(name, row)
                standings[name].results.append(result)
                report(name, result)
        return standings

    def _run(self, contestant: str, row: Row) -> Result:
        topic = row.peer_topic if contestant == JVM else row.topic
        process, load = self._processes[contestant], os.getloadavg()[0]
        work = "sleep" if topic.sleeping else "gated" if row.backlog else "noop"
        command = f"{self._name(topic)} {row.ordering.upper()} {topic.records} {row.concurrency} {work}"
        before_s = processor_s(process.pid)
        watch = threading.Timer(RUN_LIMIT_S, process.kill)
        watch.start()
        try:
            answer = process.ask(command)
        finally:
            watch.cancel()
        used_s = processor_s(process.pid) - before_s
        if answer.startswith("error"):
            raise RuntimeError(f"{contestant} on {row.name}: {answer}")
        *figures, done = answer.split(" ")
        if int(done) != topic.records:
            raise RuntimeError(f"{contestant} on {row.name}: ran {done} of {topic.records} records")
        from_subscribe_s, from_first_s, sum_s, heaviest_s = map(float, figures)
        limit_s = row.limit_s(sum_s, heaviest_s)
        return Result(from_subscribe_s, from_first_s, limit_s, topic.records, used_s, load)

    def _name(self, topic: Topic) -> str:
        return f"bench-{os.getpid()}-{id(self):x}-{topic.name}"


def takes_part(name: str, row: Row) -> bool:
    """Whether a contestant runs this row."""
    if row.contestants == "threads":
        return name == THREADS
    return row.contestants == "all" or name != THREADS
