"""The pages of an offset server: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes. Needs the extra
`metrics`.

Each is made on a thread of its own, and asks the event loop, which owns what is told.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from keylane.consumer.health import ANSWER_WITHIN_S, Health
from keylane.metrics import health_families
from keylane.metrics.pages import PageServer, health_pages
from keylane.metrics.prometheus import FamilyCollector, metrics_page
from keylane.offset_servers.measures import server_families

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keylane.metrics import Family
    from keylane.offset_servers.measures import State


def serve_metrics(state: Callable[[], Awaitable[State]], port: int, host: str) -> PageServer:
    """To be called in the event loop that `state` belongs to. Raises `PeerError` when the port cannot be had."""
    loop = asyncio.get_running_loop()

    def ask() -> State | None:
        """None when the loop does not answer."""
        asked = asyncio.run_coroutine_threadsafe(_awaited(state), loop)
        try:
            return asked.result(ANSWER_WITHIN_S)
        except FutureTimeoutError:
            asked.cancel()
            return None

    def families() -> list[Family]:
        found = ask()
        return health_families(health_of(found)) + ([] if found is None else server_families(found))

    pages = metrics_page(FamilyCollector(families)) | health_pages(lambda: health_of(ask()))
    return PageServer(pages, port, host, "metrics")


def health_of(state: State | None) -> Health:
    """What probes are told; None: the event loop does not answer."""
    if state is None:
        fault = f"its loop has not answered for {ANSWER_WITHIN_S:.0f} s"
        return Health(fault, fault)
    return Health(None, state.unready)


async def _awaited(state: Callable[[], Awaitable[State]]) -> State:
    return await state()
