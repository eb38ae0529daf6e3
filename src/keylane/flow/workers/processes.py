"""Worker processes, for functions that compute: one interpreter each, so that they use as many cores.

The idea: each process belongs to a thread here, which starts it, hands it items, waits for its answers and replaces it
when it dies. The processes are interpreters of their own (`keylane.flow.workers.process_main`), not forks, so they
share nothing with the client's threads; they end with their parent, however that ends.

Items cross several at a time, as many as wait; answers come item by item. What a dead process was at (an item, a
batch) is a failed attempt; what it had not begun runs elsewhere.
"""

from __future__ import annotations

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

from keylane.errors import WorkerProcessError
from keylane.flow.items import Batch
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.flow.workers import Meter, Running, WorkerDied, WorkersClosed, WorkersFailed, merged
from keylane.flow.workers.calls import give_outcomes, sort_out, startable
from keylane.flow.workers.cargo import pack_with_classes
from keylane.flow.workers.crossing import loaded, loaded_error
from keylane.flow.workers.process_main import READY
from keylane.flow.workers.timeouts import HandlerTimeoutError
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from keylane.flow.items import Call, Carried, Source, Unit
    from keylane.flow.outcomes import Outcome
    from keylane.flow.workers import Histogram, Lease
    from keylane.flow.workers.calls import Function
    from keylane.flow.workers.cargo import Cargo
    from keylane.flow.workers.crossing import Answer
    from keylane.flow.workers.process_main import HandOver

    Held = Sequence[tuple[Source, Carried]]
    """Of what a process has: the source and payload of each item, the one that runs first."""

logger = logger_of("keylane.flow")

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

    def __init__(
        self,
        function: Function,
        concurrency: int,
        report: Callable[[object], None],
        name: str,
        lease: Lease,
        timeout_s: float | None,
    ) -> None:
        self.concurrency = concurrency
        self._cargo = pack_with_classes(function, "worker processes")
        self._function = function
        self._timeout_s = timeout_s
        self._lease = lease
        self._report = report
        self._queue: SimpleQueue[Unit | None] = SimpleQueue()
        self._at: list[tuple[WorkerProcess, Held, float] | None] = [None] * self.concurrency
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
        """Take back what no process has, and whose source may begin nothing any more."""
        kept_ones, withdrawn = sort_out(self._queue.get_nowait)
        self.submit(kept_ones)
        return withdrawn

    def cancel(self) -> None:
        """End the processes whose result nobody wants; they are replaced."""
        for at in self._at:
            if at is not None and at[1] and not any(source.wanted for source, _ in at[1]):
                at[0].kill()

    def running(self) -> Sequence[Running]:
        return [Running(*at[1][0], at[2], at[0].where) for at in self._at if at is not None and at[1]]

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
        for process, held, _ in killed:
            if not held:
                continue
            names = (source.name_of(payload.offset()) for source, payload in held)
            logger.warning("closing ends the process that still runs %s", ", ".join(names))
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
        if isinstance(unit, Batch):
            if startable(unit, self._lease, self._function):
                return True
        else:
            runs = unit.source.may_begin and monotonic() < self._lease.until
            outcome = self._function.kept(unit.payloads[0]) if runs else NOT_RUN
            if outcome is None:
                return True
            _none_begun(unit, outcome)
        self._report(unit)
        return False

    def _run(self, slot: int, process: WorkerProcess, units: list[Unit]) -> bool:
        """Run these in the process and report each; returns whether it is still there."""
        every = [_held(unit) for unit in units]
        self._at[slot] = process, [one for held in every for one in held], monotonic()
        departs = self._function.departs
        try:
            process.send([_hand_over(unit, held, departs) for unit, held in zip(units, every, strict=True)])
        except OSError:  # it died idle: nothing of this has begun
            self._died(process, units, 0, [])
            return False
        for index, (unit, held) in enumerate(zip(units, every, strict=True)):
            self._at[slot] = process, held, monotonic()
            try:
                self._answers(slot, process, unit, held)
            except (EOFError, OSError):
                at = self._at[slot]
                was_at = at[1] if at else ()
                self._died(process, units[index:], len(held) - len(was_at), was_at)
                return False
        self._at[slot] = process, (), monotonic()
        return True

    def _answers(self, slot: int, process: WorkerProcess, unit: Unit, held: Held) -> None:
        """Take the answers of one hand-over and report it."""
        if isinstance(unit, Batch):
            answer = process.answer(self._timeout_s, len(held))
            give_outcomes([item for item in unit.items if item.outcome is None], answer.outcomes)
            self._meters[slot].add(answer.took_ns)
        else:
            began = monotonic()
            for number in range(len(held)):
                self._at[slot] = process, held[number:], monotonic()
                answer = process.answer(self._timeout_s)
                self._meters[slot].add(answer.took_ns)
                if answer.outcomes[0] is not None:
                    unit.note(number, answer.outcomes[0])
                    if unit.ordered:
                        break
                unit.answered(number + 1)
            unit.took_s = monotonic() - began
        self._report(unit)

    def _died(self, process: WorkerProcess, units: list[Unit], answered: int, was_at: Held) -> None:
        """The process ended before these were reported: a failed attempt of what it was at; the others have not run."""
        text = process.ended()
        outcome: Outcome = NOT_RUN
        if process.timed_out:
            took = f"{(self._timeout_s or 0) * 1000:.0f} ms"
            outcome = Failure(HandlerTimeoutError(f"the handler took longer than {took}; its process was ended"))
        elif any(source.wanted for source, _ in was_at):  # else it was killed because nobody wants it
            self._report(WorkerDied(text))
            outcome = Failure(WorkerProcessError(f"{text} while it ran this record"))
        for unit in units:
            if isinstance(unit, Batch):
                items = [item for item in unit.items if item.outcome is None]
                give_outcomes(items, [outcome] * len(items))
            else:
                _none_begun(unit, outcome, answered)
            self._report(unit)
            outcome, answered = NOT_RUN, 0

    def _end(self, process: WorkerProcess) -> None:
        left_s = END_S if self._deadline is None else max(0.0, self._deadline - monotonic()) + END_S
        error = process.end(left_s)
        if error is not None:
            self._close_error = error


class WorkerProcess:
    """A worker process. Raises what kept it from being ready. Thread safety: a slot's thread; `kill` is for any."""

    def __init__(self, cargo: Cargo) -> None:
        ours, theirs = Pipe()
        self._classes = cargo.classes
        self.timed_out = False
        """Whether it was killed because its handler took too long."""
        command = [sys.executable, "-m", "keylane.flow.workers.process_main", str(theirs.fileno()), str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        self._connection: Connection[Any, Any] = ours
        try:
            ours.send_bytes(pickle.dumps(sys.path))
            ours.send_bytes(cargo.data)
            answer = ours.recv_bytes()
        except (EOFError, OSError):
            raise WorkerProcessError(f"{self.ended()} before it was ready; its error output says why") from None
        if answer != READY:
            self.kill()
            self.ended()
            raise self._error(answer)

    def send(self, handed_over: list[HandOver]) -> None:
        self._connection.send_bytes(marshal.dumps(handed_over))

    def answer(self, timeout_s: float | None, count: int = 1) -> Answer:
        """The next one, for so many items. Raises EOFError when the process has ended, or has been killed after
        `timeout_s`."""
        if timeout_s is not None and not self._connection.poll(timeout_s):
            self.timed_out = True
            self.kill()
            raise EOFError
        return loaded(self._connection.recv_bytes(), self._classes, count)

    def _error(self, data: bytes) -> BaseException:
        """An error that the process ends with, or what stands for it."""
        stand_in, error = pickle.loads(data)
        assert isinstance(stand_in, BaseException), type(stand_in)
        return loaded_error(error, self._classes) or stand_in

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
                data = self._connection.recv_bytes()
                error = self._error(data) if data else None
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return error


def _held(unit: Unit) -> Held:
    """The items that are to run. From now on the process has them."""
    if isinstance(unit, Batch):
        return [(item.source, item.payload) for item in unit.items if item.outcome is None]
    return [(unit.source, payload) for payload in unit.begin_all(monotonic())]


def _hand_over(unit: Unit, held: Held, departs: Callable[[Carried], Carried]) -> HandOver:
    attempt = unit.items[0].attempt if isinstance(unit, Batch) else unit.attempt
    ends_early = not isinstance(unit, Batch) and unit.ordered
    return isinstance(unit, Batch), ends_early, attempt, [departs(payload) for _, payload in held]


def _none_begun(call: Call, outcome: Outcome, begun: int = 0) -> None:
    """From the item at this index on: that one came to `outcome`, and those behind it have not run."""
    call.note(begun, outcome)
    if not call.ordered:
        for index in range(begun + 1, len(call)):
            call.note(index, NOT_RUN)
