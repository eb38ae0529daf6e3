"""Asks a model for each prompt, within a budget of tokens a minute, however long prompts and answers are."""

from contextlib import asynccontextmanager

import aiohttp
from aiolimiter import AsyncLimiter

import keylane as kl

TOKENS_A_MINUTE = 90_000
MOST_OF_ANSWER = 300


@asynccontextmanager
async def model():
    budget = AsyncLimiter(TOKENS_A_MINUTE / 6, 10)  # the budget of ten seconds at once, at most
    async with aiohttp.ClientSession("http://127.0.0.1:8080") as session:
        yield session, budget


async def ask(record: kl.Record, context: kl.Context) -> kl.Output:
    session, budget = context.resource
    prompt = (record.value or b"").decode()
    await budget.acquire(len(prompt) // 4 + MOST_OF_ANSWER)  # about four characters a token
    async with session.post("/v1/completions", json={"prompt": prompt, "max_tokens": MOST_OF_ANSWER}) as answer:
        if answer.status == 429:  # others use the same budget
            raise kl.Throttled(1_000 * int(answer.headers.get("Retry-After", "5")))
        answer.raise_for_status()
        return kl.Output("answers", key=record.key, value=await answer.read())


prompts = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "asking"},
    topics=["prompts"],
    handler=ask,
    resource=model,
    max_concurrency=64,
    retries=kl.Retries(max_attempts=10),
    on_exhausted=kl.DeadLetter("prompts.dead"),
    offset_reset="earliest",
)
