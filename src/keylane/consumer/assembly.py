"""The parts of an engine, joined around a consumer and a producer: `assemble`, the one place that knows them all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from keylane.consumer.budgeted import budgeted
from keylane.consumer.callbacks import Callbacks, CommitCallbacks
from keylane.consumer.core import MODES, Core
from keylane.consumer.decoding import decoding
from keylane.consumer.events import ConsumerFailed, Delivered, Heard
from keylane.consumer.intake import Intake, Lease
from keylane.consumer.loop import Loop
from keylane.consumer.results import results_rule, with_results
from keylane.consumer.returns import outcome_of, outcomes_of, record_arrives, record_departs
from keylane.consumer.tracing import traced, wants_tracing
from keylane.flow.around import handler_of
from keylane.flow.failure_callback import FailureCallback
from keylane.flow.failures import Failures
from keylane.flow.workers import Inbox
from keylane.flow.workers.aio import AsyncioWorkers
from keylane.flow.workers.blocked import LoopWatch
from keylane.flow.workers.calls import Function
from keylane.flow.workers.made import hand_over_to, make_workers, timed
from keylane.flow.workers.tuning import HOST
from keylane.options import Processes
from keylane.pipeline import Commit
from keylane.records import RecordView
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.consumer.commits import Told
    from keylane.consumer.outputs import Answers, Delivery
    from keylane.consumer.ports import ConsumerPort, LastStage, ProducerPort, ResultsPort, TransactionsPort
    from keylane.consumer.start import TopicPartition
    from keylane.errors import HandlerError
    from keylane.flow.spending import Spends
    from keylane.flow.workers.timeouts import Watch
    from keylane.pipeline import Pipeline

logger = logger_of("keylane.consumer")


def assemble(
    pipeline: Pipeline,
    consumer: ConsumerPort,
    make_producer: Callable[[Callable[[Answers], None]], ProducerPort],
    *,
    random: Callable[[], float],
    name: str,
    ending_offsets: Mapping[TopicPartition, int] | None = None,
    stream: LastStage | None = None,
    session_s: float | None = None,
    make_transactions: Callable[[Callable[[Answers], None], Callable[[object], None]], TransactionsPort] | None = None,
    failures: Failures | None = None,
    budget: Spends | None = None,
) -> Loop:
    """An engine that is not started. `make_producer` is called with where to report, when there is the first output.

    With a `stream` that wants every result, the handler may return any value. `random` gives floats from 0 to 1
    (the jitter of retries); `name` begins the names of the threads; `session_s` is the group's session timeout.
    `make_transactions` makes the producer of a transactional pipeline, given where to report answers and events.
    `failures` counts failed attempts; None: those of this engine alone. `budget` is who has what the pipeline spends.
    """
    inbox = Inbox()
    pipeline = replace(pipeline, handler=handler_of(pipeline), around=None, expires_ms=None)
    if stream is not None and stream.rule.every:
        pipeline = replace(pipeline, handler=with_results(pipeline.handler, of_batches=pipeline.batch is not None))
    pipeline = replace(pipeline, handler=decoding(pipeline))
    if budget is not None and pipeline.budget is not None and not isinstance(pipeline.workers, Processes):
        of_batches = pipeline.batch is not None
        pipeline = replace(pipeline, handler=budgeted(pipeline.handler, budget, pipeline.budget, of_batches=of_batches))
    if wants_tracing(pipeline):
        pipeline = replace(pipeline, handler=traced(pipeline))
    handler, watch = timed(pipeline)
    lease = Lease(session_s)
    function = Function(
        handler,
        RecordView.of,
        outcome_of,
        outcomes_of,
        pipeline.resource,
        pipeline.not_before,
        record_departs,
        record_arrives,
    )
    workers = make_workers(pipeline, function, inbox.put, name, lease)
    failures = failures or Failures()
    failure_callback = None if pipeline.on_failure is None else FailureCallback(pipeline.on_failure, name)
    core = Core(
        pipeline,
        hand_over_to(workers, pipeline, may_queue=MODES[pipeline.guarantee].may_queue and pipeline.priority is None),
        random=random,
        ending_offsets=ending_offsets,
        results=results_rule(pipeline, stream),
        lease=lease,
        running=workers.running,
        failures=failures,
        on_failure=None if failure_callback is None else failure_callback.tell,
        log=logger,
        budget=budget,
    )
    looks: Watch | LoopWatch | None = LoopWatch(workers, failures) if isinstance(workers, AsyncioWorkers) else watch
    intake = Intake(
        consumer,
        inbox.put,
        revoke_timeout_s=pipeline.revoke_timeout_ms / 1000,
        name=name,
        listener=pipeline.rebalance_listener,
        lease=lease,
        commits_are_heard=isinstance(pipeline.commit, Commit),
        commits_promptly=pipeline.guarantee in ("at_most_once", "almost_once", "exactly_once"),
    )

    def report(answers: Answers) -> None:
        inbox.put(Delivered(answers))

    transactions = None
    if pipeline.guarantee == "transactional":
        assert make_transactions is not None, "who makes the transactions?"
        transactions = partial(make_transactions, report, inbox.put)
    return Loop(
        core,
        inbox,
        intake,
        workers,
        lambda: make_producer(report),
        name=name,
        lease=lease,
        transactions=transactions,
        watch=looks,
        callbacks=_callbacks(pipeline, stream, inbox, name),
        results=_results(pipeline, stream, inbox, name),
        failure_callback=failure_callback,
        keeper=HOST.keeper(random) if pipeline.one_processor else None,
    )


def _callbacks(pipeline: Pipeline, stream: LastStage | None, inbox: Inbox, name: str) -> CommitCallbacks:
    """Who hears of commits: the pipeline's callbacks first, then whoever is beyond the stream."""

    def failed(error: HandlerError) -> None:
        inbox.put(ConsumerFailed(error))

    def heard(told: Told) -> None:
        inbox.put(Heard(told.count))

    following = None if stream is None else stream.commits(heard)
    return CommitCallbacks(pipeline.on_commit, pipeline.on_committed, failed, heard, name, following)


def _results(pipeline: Pipeline, stream: LastStage | None, inbox: Inbox, name: str) -> ResultsPort[Delivery] | None:
    """The stages between success and completion: callbacks first, then the stream."""
    if stream is not None:
        stream.report_to(inbox.put)
    if pipeline.on_produced is None:
        return stream
    return Callbacks(pipeline.on_produced, inbox.put, stream, name)
