"""Pipelines that start with a FastAPI application, drain at its end, and answer its probes.

    app = FastAPI(lifespan=lifespan(orders))
    app.include_router(probes)

Handlers run on keylane's own asyncio loop and not on the application's, so clients of theirs are a pipeline's
`resource`, and no client of the application's.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from keylane.consumer.health import Health
from keylane.errors import UsageError
from keylane.metrics.pages import health_pages
from keylane.parallel_consumer import ParallelConsumer
from keylane.telling import logger_of

try:
    from fastapi import APIRouter, FastAPI, Request, Response
except ModuleNotFoundError as error:
    raise UsageError(f"keylane.adapters.fastapi needs {error.name}: run `pip install 'keylane[fastapi]'`") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from keylane.pipeline import Pipeline

    State = Mapping[str, object]
    Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[State | None]]

logger = logger_of(__name__)


def lifespan(
    *pipelines: Pipeline, inside: Lifespan | None = None
) -> Callable[[FastAPI], AbstractAsyncContextManager[State]]:
    """What `FastAPI(lifespan=…)` takes: the pipelines run while the application does.

    They start with it, and it serves at once: `probes` tell when they are ready. At its end records in handlers are
    finished (`drain_timeout_ms`) and committed. `inside` is a lifespan of your own, which is entered before they start
    and left after they have ended. The consumers are `app.state.keylane`, a tuple in the order given.

    A pipeline that ends with an error is logged as it happens, makes the probes answer 503, and raises the error at the
    application's end.
    """
    if not pipelines:
        raise UsageError("lifespan(): give a pipeline")

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            state = None if inside is None else await stack.enter_async_context(inside(app))
            consumers = tuple(ParallelConsumer(one) for one in pipelines)
            app.state.keylane = consumers
            tasks = [asyncio.create_task(_run(one)) for one in consumers]
            try:
                yield state or {}
            finally:
                for one in consumers:
                    one.stop()
                await asyncio.wait(tasks)
            for task in tasks:
                task.result()

    return running


async def _run(consumer: ParallelConsumer) -> None:
    try:
        await consumer.run_async()
    except Exception:
        # Without the traceback, which may quote a record.
        logger.error("a pipeline of the application has ended: %s", consumer.health().fault)  # noqa: TRY400
        raise


probes = APIRouter()
"""`/healthz` and `/readyz` of the application's pipelines: 200 and a line, or 503 and a line with the reason."""


@probes.get("/healthz", include_in_schema=False)
@probes.get("/readyz", include_in_schema=False)
def probe(request: Request) -> Response:
    """On a thread, as functions of FastAPI that are no coroutines are: a loop that stands is waited for."""
    consumers: Sequence[ParallelConsumer] = request.app.state.keylane

    def worst() -> Health:
        found = [(one.fault, one.unready) for one in (each.health() for each in consumers)]
        return Health(*(next(filter(None, texts), None) for texts in zip(*found, strict=True)))

    page = health_pages(worst)[request.scope["route"].path](request.headers.get("accept", ""))
    return Response(page.body, page.status, media_type=page.content_type)
