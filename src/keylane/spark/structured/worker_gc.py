"""What Spark's Python workers need not look through: Spark runs a full garbage collection after each task of one."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_modules_from_gc(task: str) -> None:  # noqa: ARG001 - what it is known by
    """Once in each worker process and for each kind of task, when what that kind imports is there.

    Modules are never garbage. Going through all of them takes 40 to 80 ms of a processor, which the other tasks of a
    small batch wait for.
    """
    gc.freeze()
