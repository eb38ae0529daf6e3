"""The parts of an engine, joined around a consumer and a producer: `assemble`, the one place that knows them all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from keylane.engine.acknowledgements import CommitCallbacks
from keylane.engine.admission import HandOver
from keylane.engine.aio import AsyncioWorkers
from keylane.engine.blocked import LoopWatch
from keylane.engine.core import Core
from keylane.engine.decoding import decoding
from keylane.engine.events import ConsumerFailed, Delivered, Inbox
from keylane.engine.intake import Intake
from keylane.engine.lease import Lease
from keylane.engine.loop import Loop
from keylane.engine.results import Callbacks, ResultsRule, with_results
from keylane.engine.threads import ThreadWorkers
from keylane.engine.timeouts import Watch, in_time
from keylane.engine.tracing import traced, wants_tracing
from keylane.engine.tuning import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.engine.events import Answers
    from keylane.engine.failures import Failures
    from keylane.engine.ports import ConsumerPort, ProducerPort, ResultsPort, TopicPartition, TransactionsPort, Workers
    from keylane.engine.results import ResultQueue
    from keylane.options import Pipeline


def assemble(
    pipeline: Pipeline,
    consumer: ConsumerPort,
    make_producer: Callable[[Callable[[Answers], None]], ProducerPort],
    *,
    random: Callable[[], float],
    name: str,
    ending_offsets: Mapping[TopicPartition, int] | None = None,
    stream: ResultQueue | None = None,
    session_s: float | None = None,
    make_transactions: Callable[[Callable[[Answers], None], Callable[[object], None]], TransactionsPort] | None = None,
    failures: Failures | None = None,
) -> Loop:
    """An engine that is not started. `make_producer` is called with where to report, when there is the first output.

    With a `stream`, the handler may return any value, and every result goes there. `random` gives floats from 0 to 1
    (the jitter of retries); `name` begins the names of the threads; `session_s` is the group's session timeout.
    `make_transactions` makes the producer of `delivery="transactional"`, given where to report answers and events.
    `failures` counts failed attempts; None: those of this engine alone.
    """
    inbox = Inbox()
    if stream is not None:
        pipeline = replace(pipeline, handler=with_results(pipeline.handler, of_batches=pipeline.batch_size > 1))
    pipeline = replace(pipeline, handler=decoding(pipeline))
    if wants_tracing(pipeline):
        pipeline = replace(pipeline, handler=traced(pipeline))
    pipeline, watch = _timed(pipeline)
    workers = _workers(pipeline, inbox.put, name)
    workers.lease = lease = Lease(session_s)
    core = Core(
        pipeline,
        HandOver.to(pipeline, workers),
        random=random,
        ending_offsets=ending_offsets,
        results=ResultsRule.of(pipeline, stream),
        lease=lease,
        running=workers.running,
        failures=failures,
    )
    looks: Watch | LoopWatch | None = (
        LoopWatch(workers, core.failures) if isinstance(workers, AsyncioWorkers) else watch
    )
    intake = Intake(
        consumer,
        inbox.put,
        revoke_timeout_s=pipeline.revoke_timeout_ms / 1000,
        name=name,
        listener=pipeline.rebalance_listener,
        lease=lease,
        commits_are_heard=pipeline.commits == "group",
        commits_promptly=pipeline.delivery in ("at_most_once", "almost_once"),
    )

    def report(answers: Answers) -> None:
        inbox.put(Delivered(answers))

    transactions = None
    if pipeline.delivery == "transactional":
        assert make_transactions is not None, "who makes the transactions?"
        transactions = partial(make_transactions, report, inbox.put)
    return Loop(
        core,
        inbox,
        intake,
        workers,
        lambda: make_producer(report),
        name=name,
        transactions=transactions,
        watch=looks,
        callbacks=CommitCallbacks(pipeline, lambda error: inbox.put(ConsumerFailed(error)), name),
        results=_results(pipeline, stream, inbox, name),
        keeper=HOST.keeper(random) if pipeline.one_processor else None,
    )


def _timed(pipeline: Pipeline) -> tuple[Pipeline, Watch | None]:
    """The pipeline with its handlers held to their time, and who looks at those in threads."""
    timeout_s = pipeline.handler_timeout_ms / 1000
    if not timeout_s or pipeline.workers == "process":  # whose threads look after that
        return pipeline, None
    if pipeline.is_async:
        return replace(pipeline, handler=in_time(pipeline.handler, timeout_s)), None
    watch = Watch(pipeline.handler, timeout_s)
    return replace(pipeline, handler=watch.call), watch


def _workers(pipeline: Pipeline, report: Callable[[object], None], name: str) -> Workers:
    if pipeline.workers == "process":
        from keylane.engine.processes import ProcessWorkers

        return ProcessWorkers(pipeline, report, name)
    return AsyncioWorkers(pipeline, report, name) if pipeline.is_async else ThreadWorkers(pipeline, report, name)


def _results(pipeline: Pipeline, stream: ResultQueue | None, inbox: Inbox, name: str) -> ResultsPort | None:
    """The stages between success and completion: callbacks first, then the stream."""
    if stream is not None:
        stream.report = inbox.put
    if pipeline.on_produced is None:
        return stream
    return Callbacks(pipeline.on_produced, inbox.put, stream, name)
