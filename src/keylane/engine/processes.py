"""Worker processes, for functions that compute: one interpreter each, so that they use as many cores.

The idea: each process belongs to a thread here, which starts it, hands it records, waits for its answers and replaces
it when it dies. The processes are interpreters of their own (`keylane.engine.process_main`), not forks, so they share
nothing with the client's threads; they end with their parent, however that ends.

Records cross several at a time, as many as wait; answers come record by record. What a dead process was at (a record,
a batch) is a failed attempt; what it had not begun runs elsewhere.
"""

from __future__ import annotations

import logging
import marshal
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.engine.calls import give_outcomes, kept, sort_out, startable
from keylane.engine.cargo import pack
from keylane.engine.latency import Meter, merged
from keylane.engine.lease import Lease
from keylane.engine.ports import Running, WorkerDied, WorkersClosed, WorkersFailed
from keylane.engine.process_main import READY, Answer, plain
from keylane.engine.timeouts import HandlerTimeoutError
from keylane.engine.work import NOT_RUN, Failure, works_in
from keylane.errors import WorkerProcessError
from keylane.options import takes_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from keylane.engine.latency import Histogram
    from keylane.engine.process_main import HandOver
    from keylane.engine.work import Outcome, Unit, Work
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.engine")

MAX_TOGETHER = 200
"""Hand-overs that cross together at most."""

END_S = 1.0
"""How long a process that was asked to end may take to leave its resource, beyond the time that closing is given."""


class ProcessWorkers:
    """N processes that run a function, each with a thread that looks after it.

    Thread safety: `submit`, `withdraw`, `cancel` and `close` are the loop's; `report` is called from the threads.
    """

    may_queue = True
    elastic = False

    def __init__(self, pipeline: Pipeline, report: Callable[[Any], None], name: str) -> None:
        self.concurrency = min(pipeline.processes or os.cpu_count() or 1, pipeline.most_concurrent)
        self._cargo = pack((pipeline.handler, takes_context(pipeline.handler), pipeline.resource), "worker processes")
        self._not_before = pipeline.not_before
        self._timeout_s = pipeline.handler_timeout_ms / 1000 or None
        self.lease = Lease()
        self._report = report
        self._queue: SimpleQueue[Unit | None] = SimpleQueue()
        self._at: list[tuple[WorkerProcess, Sequence[Work], float] | None] = [None] * self.concurrency
        """The process of each slot, what it holds, and since when it is at the first of that; written by the slot's
        thread alone."""
        self._meters = [Meter() for _ in range(self.concurrency)]
        self._deadline: float | None = None
        self._close_error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"{name}-process-{slot}", daemon=True)
            for slot in range(self.concurrency)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def resize(self, concurrency: int) -> None:
        """There are as many processes as there are."""

    def submit(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._queue.put(unit)

    def withdraw(self) -> Sequence[Unit]:
        """Take back what no process has, and whose assignment may start nothing any more."""
        kept_ones, withdrawn = sort_out(self._queue.get_nowait)
        self.submit(kept_ones)
        return withdrawn

    def cancel(self) -> None:
        """End the processes whose result nobody wants; they are replaced."""
        for at in self._at:
            if at is not None and at[1] and not any(work.assignment.wanted for work in at[1]):
                at[0].kill()

    def running(self) -> Sequence[Running]:
        return [Running(at[1][0].message, at[2], at[0].where) for at in self._at if at is not None and at[1]]

    def latency(self) -> Histogram:
        return merged(self._meters)

    def close(self, timeout_s: float) -> WorkersClosed:
        """End the processes, which leave their resources; those that still run after `timeout_s` are killed."""
        self._deadline = monotonic() + timeout_s
        for _ in range(self.concurrency):
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, self._deadline - monotonic()))
        killed = [at for at in self._at if at is not None]
        for process, works, _ in killed:
            if not works:
                continue
            logger.warning("closing ends the process that still runs %s", ", ".join(work.name for work in works))
            process.kill()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(END_S)
        return WorkersClosed(error=self._close_error)

    # --- a slot's thread ---

    def _serve(self, slot: int) -> None:
        process: WorkerProcess | None = None
        try:
            process = WorkerProcess(self._cargo)
            while (units := self._next()) is not None:
                startable_ones = [unit for unit in units if self._keep(unit)]
                if startable_ones and not self._run(slot, process, startable_ones):
                    self._at[slot] = None
                    if self._deadline is not None:
                        return
                    process = WorkerProcess(self._cargo)
        except BaseException as error:  # reported: the consumer stops with it
            self._report(WorkersFailed(error))
        finally:
            self._at[slot] = None
            if process is not None:
                self._end(process)

    def _next(self) -> list[Unit] | None:
        """What waits, as much as is this process's share of it; None at the end."""
        unit = self._queue.get()
        if unit is None:
            return None
        units = [unit]
        try:
            for _ in range(min(MAX_TOGETHER, self._queue.qsize() // self.concurrency)):
                if (more := self._queue.get_nowait()) is None:
                    self._queue.put(None)
                    break
                units.append(more)
        except Empty:  # another process was quicker
            pass
        return units

    def _keep(self, unit: Unit) -> bool:
        """Whether something of it may run now; what may not is reported."""
        if isinstance(unit, list):
            if startable(unit, self.lease, self._not_before):
                return True
            self._report(unit)
            return False
        runs = unit.assignment.may_start and monotonic() < self.lease.until
        outcome: Outcome = None if runs else NOT_RUN
        if outcome is None and self._not_before is not None:
            outcome = kept(unit.message, self._not_before)
        if outcome is not None:
            unit.outcome = outcome
            self._report(unit)
        return outcome is None

    def _run(self, slot: int, process: WorkerProcess, units: list[Unit]) -> bool:
        """Run these in the process and report each; returns whether it is still there."""
        every = [_works(unit) for unit in units]
        self._at[slot] = process, [work for works in every for work in works], monotonic()
        try:
            process.send([_hand_over(unit, works) for unit, works in zip(units, every, strict=True)])
        except OSError:  # it died idle: nothing of this has begun
            self._died(process, units, [])
            return False
        for index, (unit, works) in enumerate(zip(units, every, strict=True)):
            self._at[slot] = process, works, monotonic()
            try:
                self._answers(slot, process, unit, works)
            except (EOFError, OSError):
                at = self._at[slot]
                self._died(process, units[index:], at[1] if at else [])
                return False
        self._at[slot] = process, (), monotonic()
        return True

    def _answers(self, slot: int, process: WorkerProcess, unit: Unit, works: Sequence[Work]) -> None:
        if isinstance(unit, list):
            answer = process.answer(self._timeout_s)
            give_outcomes(works, answer.outcomes)
            self._meters[slot].add(answer.took_ns)
            self._report(unit)
            return
        for number, work in enumerate(works):
            self._at[slot] = process, works[number:], monotonic()
            answer = process.answer(self._timeout_s)
            outcome = work.outcome = answer.outcomes[0]
            self._meters[slot].add(answer.took_ns)
            self._report(work)
            if outcome is not None:
                return

    def _died(self, process: WorkerProcess, units: list[Unit], was_at: Sequence[Work]) -> None:
        """The process ended before these were reported: a failed attempt of what it was at; the others have not run."""
        text = process.ended()
        outcome: Outcome = NOT_RUN
        if process.timed_out:
            took = f"{(self._timeout_s or 0) * 1000:.0f} ms"
            outcome = Failure(HandlerTimeoutError(f"the handler took longer than {took}; its process was ended"))
        elif any(work.assignment.wanted for work in was_at):  # else it was killed because nobody wants it
            self._report(WorkerDied(text))
            outcome = Failure(WorkerProcessError(f"{text} while it ran this record"))
        for unit in units:
            if isinstance(unit, list):
                give_outcomes(_works(unit), [outcome] * len(_works(unit)))
                self._report(unit)
            else:
                first = was_at[0] if was_at else unit
                first.outcome = outcome
                self._report(first)
            outcome, was_at = NOT_RUN, []

    def _end(self, process: WorkerProcess) -> None:
        left_s = END_S if self._deadline is None else max(0.0, self._deadline - monotonic()) + END_S
        error = process.end(left_s)
        if error is not None:
            self._close_error = error


class WorkerProcess:
    """A worker process. Raises what kept it from being ready. Thread safety: a slot's thread; `kill` is for any."""

    def __init__(self, cargo: bytes) -> None:
        ours, theirs = Pipe()
        self.timed_out = False
        """Whether it was killed because its handler took too long."""
        command = [sys.executable, "-m", "keylane.engine.process_main", str(theirs.fileno()), str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        self._connection: Connection[Any, Any] = ours
        try:
            ours.send_bytes(pickle.dumps(sys.path))
            ours.send_bytes(cargo)
            answer = ours.recv_bytes()
        except (EOFError, OSError):
            raise WorkerProcessError(f"{self.ended()} before it was ready; its error output says why") from None
        if answer != READY:
            self.kill()
            self.ended()
            error = pickle.loads(answer)
            if isinstance(error, BaseException):
                raise error

    def send(self, handed_over: list[HandOver]) -> None:
        self._connection.send_bytes(marshal.dumps(handed_over))

    def answer(self, timeout_s: float | None) -> Answer:
        """The next one. Raises EOFError when the process has ended, or has been killed after `timeout_s`."""
        if timeout_s is not None and not self._connection.poll(timeout_s):
            self.timed_out = True
            self.kill()
            raise EOFError
        answer = pickle.loads(self._connection.recv_bytes())
        assert isinstance(answer, Answer), type(answer)  # no payload in an error
        return answer

    def where(self) -> str:
        """How errors name it."""
        return f"worker process {self._process.pid}"

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> str:
        """Wait for its end; how it ended."""
        self._connection.close()
        self._process.kill()
        code = self._process.wait()
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return f"a worker process (pid {self._process.pid}) ended {how}"

    def end(self, timeout_s: float) -> BaseException | None:
        """Have it leave its resource and end; what that raised."""
        error = None
        with suppress(EOFError, OSError):  # it has ended, or is killed
            self._connection.send_bytes(b"")
            if self._connection.poll(timeout_s):
                error = pickle.loads(self._connection.recv_bytes())
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return error if isinstance(error, BaseException) else None


def _works(unit: Unit) -> Sequence[Work]:
    """The records that are to run."""
    if isinstance(unit, list):
        return [work for work in unit if work.outcome is None]
    return works_in(unit)


def _hand_over(unit: Unit, works: Sequence[Work]) -> HandOver:
    return isinstance(unit, list), works[0].attempt, [plain(work.message) for work in works]
