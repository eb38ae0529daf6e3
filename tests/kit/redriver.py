"""A redrive of dead letters that is killed: by itself at its n-th step (before and after each record, offset and
commit), or from outside at any moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, Any

from keylane.cli.main import main
from keylane.desk import redrive as redriving
from keylane.kafka.redriving import Redriving

if TYPE_CHECKING:
    from collections.abc import Callable

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["kit.redriver", "keylane.cli.dlq", "rich.table"])

LOT = 4
STEPS_A_LOT = 2 * LOT + 4


def redrive(servers: str, topic: str, dies_at: int = 0, dies_after_s: float | None = None, *more: str) -> int | None:
    """The exit code of a process that redrives; it is killed at that step, if there are so many, or so long after its
    start, if it still runs."""
    process = _processes.Process(target=_redrive, args=(servers, topic, dies_at, *more))
    process.start()
    if dies_after_s is not None:
        process.join(dies_after_s)
        process.kill()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the redrive did not end")
    return process.exitcode


def stop() -> None:
    """The processes that started the others."""
    for server in (forkserver._forkserver, resource_tracker._resource_tracker):
        server._stop()  # type: ignore[union-attr] # what CPython's own tests use


def _redrive(servers: str, topic: str, dies_at: int, *more: str) -> None:
    step = 0

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> None:
            for do in (lambda: None, lambda: method(*arguments)):
                nonlocal step
                do()
                step += 1
                if step == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    redriving.LOT = LOT
    for name in ("produce", "_until_told"):
        setattr(Redriving, name, around(getattr(Redriving, name)))
    raise SystemExit(main(["dlq", "redrive", topic, "--bootstrap", servers, "--execute", *more]))
