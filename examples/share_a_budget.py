"""Asks a model for each prompt, within a budget that every process of every group shares that names it."""

import asyncio

import keylane as kl

model = kl.Budget(
    "model",
    kl.Per(500, "requests", per_ms=60_000),
    kl.Per(200_000, "tokens", per_ms=60_000, burst=20_000),
    kl.Cap(50, "usd", day="UTC"),
)
USD_PER_TOKEN = 0.000_002


def cost(record: kl.Record) -> dict[str, float]:
    tokens = len(record.value or b"") / 3  # about three bytes a token
    return {"requests": 1, "tokens": tokens, "usd": tokens * USD_PER_TOKEN}


async def ask(record: kl.Record, context: kl.Context) -> kl.Output:
    answer, tokens = await call_the_model(record.value or b"")
    context.budget.settle(tokens=tokens, usd=tokens * USD_PER_TOKEN)  # what it really was
    return kl.Output("answers", key=record.key, value=answer)


async def call_the_model(prompt: bytes) -> tuple[bytes, int]:
    await asyncio.sleep(0.05)  # your client's call stands here
    return b"an answer to " + prompt, len(prompt)


prompts = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "asking"},
    topics=["prompts"],
    handler=ask,
    budget=model.cost(cost),
    max_concurrency=64,
    offset_reset="earliest",
)
