"""Two calls that cost money for each order: a failed second one does not repeat the first, and neither does a crash."""

import json
import random

import keylane as kl


def assess(order: bytes) -> dict:  # a call that costs a cent
    return {"risk": len(order) % 3}


def bill(order: bytes, risk: int, once: str) -> str:  # a service that takes an idempotency key
    if random.random() < 0.2:
        raise ConnectionError("the service is away")
    return f"invoice {once[:8]}, risk {risk}"


def handle(record: kl.Record, context: kl.Context) -> kl.Output:
    answer = context.step(assess, record.value)
    once = context.step_key("bill")
    invoice = context.step(bill, record.value, answer["risk"], once)
    return kl.Output("orders.billed", key=record.key, value=json.dumps([answer, invoice]).encode())


orders = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "billing"},
    topics=["orders"],
    handler=handle,
    steps=kl.Steps(),
    retries=kl.Retries(max_attempts=20, delay_ms=50),
    offset_reset="earliest",
)
