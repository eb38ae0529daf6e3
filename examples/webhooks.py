"""Sends webhooks: those of a customer in order and at most ten a second; who does not answer holds up nobody else."""

import json

import keylane as kl
from keylane import http


def request(record: kl.Record) -> http.Request:
    hook = json.loads(record.value or b"")
    once = f"{record.topic}-{record.partition}-{record.offset}"  # the same when it is sent again
    return http.Request("POST", hook["url"], headers={"Idempotency-Key": once}, json=hook["event"])


calls = http.Calls(  # 408, 429 and 5xx are tried again, other refusals are not
    request=request,
    timeout_ms=10_000,
    refuse_private_addresses=True,  # customers choose the addresses: none may lead into your own network
)

webhooks = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "webhooks"},
    topics=["webhooks"],  # keyed by customer
    handler=calls,
    resource=calls.pool,
    ordering="key",
    rates=kl.Rates(per_key=10),
    max_concurrency=1_000,
    retries=kl.Retries(max_attempts=None, delay_ms=1_000, max_age_ms=15 * 60_000),
    on_exhausted=kl.DeadLetter("webhooks.dead"),
    offset_reset="earliest",
)
