"""The one door to `keylane.flow.host`: how keylane is tuned to its machine, or nothing where that folder is not there.

Found by its name and not imported, so that it can be deleted without a change elsewhere (docs/adr/0081).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

from keylane.telling import logger_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

logger = logger_of("keylane.flow")


class Keeper(Protocol):
    """Keeps the threads of a consumer together. All of it is the loop's."""

    next_check: float
    """When to call `check` (`time.monotonic()`)."""
    gap_s: float
    """How long the loop lets others go on between the steps of a turn, while the workers have enough to do."""

    def keep(self, now: float) -> None:
        """Before anything is started that is to be kept."""

    def check(self, now: float) -> None: ...


class Host(Protocol):
    """What may be done for the machine. Each call may do nothing."""

    def while_running(self) -> AbstractContextManager[None]:
        """Around the life of a consumer."""

    def keep_time(self, threads: int = 1) -> None:
        """In a thread that handlers run on, one of so many."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """For handlers that are coroutine functions."""

    def keeper(self, random: Callable[[], float]) -> Keeper | None:
        """For `one_processor=True`."""

    def end_with_parent(self) -> None:
        """In a worker process."""


class _Plain:
    """Nothing is done."""

    def while_running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def keep_time(self, threads: int = 1) -> None: ...

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        return asyncio.new_event_loop()

    def keeper(self, random: Callable[[], float]) -> None:  # noqa: ARG002 - as the protocol has it
        logger.warning("one_processor=True has no effect: this keylane comes without keylane.flow.host")

    def end_with_parent(self) -> None: ...


def _found() -> Host:
    name = "keylane.flow.host"
    host: Any = import_module(name) if find_spec(name) is not None else _Plain()
    return cast("Host", host)


HOST = _found()
