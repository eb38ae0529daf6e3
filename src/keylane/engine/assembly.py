"""The parts of an engine, joined around a consumer and a producer: `assemble`, the one place that knows them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.engine.aio import AsyncioWorkers
from keylane.engine.core import Core
from keylane.engine.events import Delivered, Inbox
from keylane.engine.intake import Intake
from keylane.engine.loop import Loop
from keylane.engine.threads import ThreadWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.engine.events import Answers
    from keylane.engine.ports import ConsumerPort, ProducerPort, TopicPartition, Workers
    from keylane.options import Pipeline


def assemble(
    pipeline: Pipeline,
    consumer: ConsumerPort,
    make_producer: Callable[[Callable[[Answers], None]], ProducerPort],
    *,
    random: Callable[[], float],
    name: str,
    ending_offsets: Mapping[TopicPartition, int] | None = None,
) -> Loop:
    """An engine that is not started. `make_producer` is called with where to report, when there is the first output.

    `random` gives floats from 0 to 1 (the jitter of retries); `name` begins the names of the threads.
    """
    inbox = Inbox()
    make_workers = AsyncioWorkers if pipeline.is_async else ThreadWorkers
    workers: Workers = make_workers(pipeline, inbox.put, name)
    core = Core(
        pipeline,
        concurrency=workers.concurrency,
        may_queue=workers.may_queue,
        random=random,
        ending_offsets=ending_offsets,
    )
    intake = Intake(consumer, inbox.put, revoke_timeout_s=pipeline.revoke_timeout_ms / 1000, name=name)

    def report(answers: Answers) -> None:
        inbox.put(Delivered(answers))

    return Loop(core, inbox, intake, workers, lambda: make_producer(report), name=name)
