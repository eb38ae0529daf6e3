"""FastStream's subscribers as a pipeline: `pipeline(app)`, of an application or broker that stays as it is.

The idea: FastStream asks its broker's configuration for the consumer of each subscriber, and here gets one that reads
nothing. So all else of it starts, stops and works as ever (validation, `Depends`, middlewares, publishers), and what
keylane has read is given to `process_message`. What that raises is a failed attempt of the record.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.pipeline import Pipeline

try:
    from faststream import FastStream
    from faststream.confluent import KafkaBroker
    from faststream.confluent.subscriber.usecase import BatchSubscriber, DefaultSubscriber
    from faststream.exceptions import HandlerException, NackMessage
except ModuleNotFoundError as error:
    raise UsageError(
        f"keylane.adapters.faststream needs {error.name}: run `pip install 'keylane[faststream]'`"
    ) from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from keylane.records import Context, Record

LEFT_OUT = frozenset({"allow.auto.create.topics"})
"""Of FastStream's client settings: it asks for topics that are missing, and keylane names them."""

FASTSTREAMS_RESET = "latest"
"""What a subscriber has that says nothing of `auto_offset_reset`."""


def pipeline(
    app: FastStream | KafkaBroker,
    *,
    group: str | None = None,
    kafka: Mapping[str, object] | None = None,
    **options: Any,
) -> Pipeline:
    """The pipeline that runs the subscribers of `app`, of an application or of its broker (`faststream.confluent`).

    It reads their topics as a member of their group; `group` chooses one where there are several. The broker's client
    settings hold, `kafka` adds to them, and `options` are those of `keylane.Pipeline`. Subscribers' own settings of a
    consumer do not hold: what says `auto_offset_reset="earliest"` there says `offset_reset` here, or is refused at the
    start.

    A message that a subscriber nacks, or that its function fails with, is tried again (`retries`, `on_exhausted`),
    whatever its `ack_policy`; one that is acked, rejected or skipped is complete. `Context("keylane")` is the
    `keylane.Context` of the attempt. What a subscriber returns or publishes goes through FastStream's own producer.

    Raises `UsageError` for what cannot run so: batches, patterns of partitions, subscribers without a group, brokers of
    other clients, and `delivery="transactional"`, whose transactions FastStream's producer knows nothing of.
    """
    broker = _broker_of(app)
    chosen = _of_group(broker, group)
    subscribers = Subscribers(app, broker, chosen, str(options.get("offset_reset", "latest")))
    settings = broker.config.broker_config.connection_config.consumer_config
    made = Pipeline(
        kafka={name: value for name, value in settings.items() if value is not None and name not in LEFT_OUT}
        | {"group.id": next(iter(chosen.values())).group_id}
        | dict(kafka or {}),
        topics=list(chosen),
        handler=subscribers.handle,
        resource=subscribers.started,
        **options,
    )
    if made.guarantee == "transactional":
        raise UsageError(
            "delivery='transactional': FastStream's producer is outside of keylane's transactions: use another delivery"
        )
    return made


class Subscribers:
    """The subscribers of one group: what a pipeline starts in its process, and runs records with.

    Thread safety: keylane's asyncio loop, alone.
    """

    def __init__(
        self,
        app: FastStream | KafkaBroker,
        broker: KafkaBroker,
        by_topic: Mapping[str, DefaultSubscriber],
        offset_reset: str,
    ) -> None:
        self._app = app
        self._broker = broker
        self._by_topic = by_topic
        self._offset_reset = offset_reset
        self._nacked: set[tuple[str, int, int]] = set()

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """The application, or the broker alone, from its start to its stop."""
        self._broker.config.broker_config.builder = self._consumer  # type: ignore[assignment]
        async with self._app.lifespan_context() if isinstance(self._app, FastStream) else nullcontext():
            try:
                await self._app.start()
                yield
            finally:
                await self._app.stop()

    async def handle(self, record: Record, context: Context) -> None:
        """Run the subscriber of a record's topic."""
        message = record._message  # noqa: SLF001 - a record of ours, and what FastStream's parsers read
        place = (record.topic, record.partition, record.offset)
        try:
            with self._broker.context.scope("keylane", context):
                await self._by_topic[record.topic].process_message(message)
        except NackMessage:
            raise
        except HandlerException:  # acked, rejected or skipped, under a policy that leaves that to the consumer
            return
        finally:
            was_nacked = place in self._nacked
            self._nacked.discard(place)
        if was_nacked:
            raise NackMessage

    def _consumer(self, *topics: object, auto_offset_reset: str = "latest", **_: object) -> ReadsNothing:
        names = {getattr(topic, "name", "") for topic in topics}
        if names <= self._by_topic.keys() and auto_offset_reset not in (FASTSTREAMS_RESET, self._offset_reset):
            raise UsageError(
                f"subscriber of {', '.join(sorted(names))}: auto_offset_reset={auto_offset_reset!r}, and "
                f"offset_reset={self._offset_reset!r} in the pipeline: give it there, too"
            )
        return ReadsNothing(self._nacked)


class ReadsNothing:
    """What a subscriber has as its consumer: it waits for ever, and notes what is to be read again."""

    def __init__(self, nacked: set[tuple[str, int, int]]) -> None:
        self._nacked = nacked

    async def start(self) -> None:
        """Nothing: keylane reads."""

    async def stop(self) -> None:
        """Nothing: keylane has its own end."""

    async def getone(self, timeout: float) -> None:  # noqa: ARG002, ASYNC109 - FastStream's
        await asyncio.get_running_loop().create_future()

    async def commit(self, asynchronous: bool = True) -> None:
        """Nothing: keylane commits what is complete."""

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """FastStream's nack."""
        self._nacked.add((topic, partition, offset))


def _broker_of(app: FastStream | KafkaBroker) -> KafkaBroker:
    brokers = app.brokers if isinstance(app, FastStream) else [app]
    if len(brokers) != 1 or not isinstance(brokers[0], KafkaBroker):
        kinds = ", ".join(f"{type(one).__module__.rpartition('.broker')[0]}.{type(one).__name__}" for one in brokers)
        raise UsageError(f"brokers: {kinds or 'none'}: keylane runs those of one faststream.confluent.KafkaBroker")
    return brokers[0]


def _of_group(broker: KafkaBroker, group: str | None) -> dict[str, DefaultSubscriber]:
    """Subscribers of one group, by topic."""
    found: dict[str, DefaultSubscriber] = {}
    groups = set()
    of_confluent = [one for one in broker.subscribers if isinstance(one, BatchSubscriber | DefaultSubscriber)]
    for one in sorted(of_confluent, key=lambda each: each.topic_names):  # FastStream keeps them in a set
        names = [topic.name for topic in one.topics]
        what = f"subscriber of {', '.join(one.topic_names)}"
        if one.group_id is None:
            raise UsageError(f"{what}: group_id is missing, and keylane commits for a group: give one")
        groups.add(one.group_id)
        if group not in (None, one.group_id):
            continue
        if isinstance(one, BatchSubscriber):
            raise UsageError(f"{what}: batch=True: keylane gives it one record at a time, many at once: leave it out")
        if not names:
            raise UsageError(f"{what}: partitions are assigned by hand: give topics")
        if twice := found.keys() & set(names):
            raise UsageError(f"{what}: {twice.pop()!r} has another one in group {one.group_id!r}: give each a group")
        found |= dict.fromkeys(names, one)
    if group is None and len(groups) > 1:
        raise UsageError(f"subscribers of groups {', '.join(sorted(groups))}: give group='…', and each a process")
    if not found:
        raise UsageError(f"group={group!r}: no subscriber of it: there are {', '.join(sorted(groups)) or 'none'}")
    return found
