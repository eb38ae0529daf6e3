"""What a program sees of keylane's types: `wheel-trial` has mypy and pyright check it where only the wheel is.

A line that is wrong on purpose says so to both, and an ignore that is not needed is an error.
"""

import asyncio
from typing import Any, assert_type

import keylane as kl
from keylane import http, testing


async def score(record: kl.Record, context: kl.Context) -> kl.Output:
    assert_type(record.key, bytes | None)
    assert_type(record.offset, int)
    assert_type(context.attempt, int)
    await asyncio.sleep(0)
    return kl.Output("scored", key=record.key, value=record.value)


def charge(record: kl.DecodedRecord[str, dict[str, int]], context: kl.Context[int]) -> None:
    assert_type(record.key, str)
    assert_type(record.value, dict[str, int])
    assert_type(context.resource, int)


def three(record: kl.Record, context: kl.Context, more: int) -> None:
    """A handler has one argument, or two."""


calls = http.Calls(request=lambda record: http.Request("GET", f"http://127.0.0.1/{record.offset}"))
kl.Pipeline(kafka={}, topics=["orders"], handler=calls, resource=calls.pool)
kl.Pipeline(kafka={}, topics=["orders"], handler=score, ordering="keys")  # type: ignore  # wrong on purpose
kl.Pipeline(kafka={}, topics=["orders"], handler=charge)
kl.Pipeline(kafka={}, topics=["orders"], handler=three)  # type: ignore  # wrong on purpose
kl.Retries(max_attempts="5")  # type: ignore  # wrong on purpose


def run() -> int:
    with testing.broker(topics={"orders": 2, "scored": 2}) as broker:
        kafka = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "typed"}
        pipeline = kl.Pipeline(
            kafka=kafka,
            topics=["orders"],
            handler=score,
            ordering="key",
            retries=kl.Retries(max_attempts=5),
            on_exhausted=kl.DeadLetter("orders.dead"),
            batch=None,
            delivery="at_least_once",
            offset_reset="earliest",
        )
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            consumer.run()
        told: dict[str, Any] = consumer.snapshot().to_dict()
        assert_type(consumer.snapshot(), kl.Snapshot)
        return len(told)
