"""The workers that options ask for: `make_workers`, and what is handed to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.flow.admission import CALL_S, HandOver
from keylane.flow.workers.aio import AsyncioWorkers
from keylane.flow.workers.processors import usable_processors
from keylane.flow.workers.threads import ThreadWorkers
from keylane.flow.workers.timeouts import Watch, in_time
from keylane.options import Processes, Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.flow.workers import Capacity, Lease, Workers
    from keylane.flow.workers.calls import Function
    from keylane.options import Flow


def make_workers(
    options: Flow, function: Function, report: Callable[[object], None], name: str, lease: Lease
) -> Workers:
    """Not started. `report` gets what ended, from their threads, whose names begin with `name`."""
    most = options.most_concurrent
    workers = options.workers
    if isinstance(workers, Processes):
        from keylane.flow.workers.processes import ProcessWorkers

        timeout_s = options.handler_timeout_ms / 1000 or None
        count = min(workers.count or usable_processors(), most)
        return ProcessWorkers(function, count, report, name, lease, timeout_s)
    if options.is_async:
        return AsyncioWorkers(function, most, report, name, lease)
    return ThreadWorkers(function, min((workers or Threads()).count, most), report, name, lease)


def hand_over_to(workers: Capacity, options: Flow, *, may_queue: bool = True, call_s: float = CALL_S) -> HandOver:
    """What is handed to these workers; without `may_queue` nothing waits with them. The automatic limit does what
    elastic workers are told."""
    return HandOver(
        workers.concurrency,
        may_queue=workers.may_queue and may_queue and options.breaker is None,
        elastic=workers.elastic and options.max_concurrency != "auto",
        call_s=call_s,
    )


def timed(options: Flow) -> tuple[Callable[..., Any], Watch | None]:
    """The handler held to its time, and who looks at it in threads."""
    timeout_s = options.handler_timeout_ms / 1000
    if not timeout_s or isinstance(options.workers, Processes):  # whose threads look after that
        return options.handler, None
    if options.is_async:
        return in_time(options.handler, timeout_s), None
    watch = Watch(options.handler, timeout_s)
    return watch.call, watch
