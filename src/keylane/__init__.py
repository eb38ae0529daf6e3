"""keylane: Kafka records in parallel, in order per key, on Spark or in one Python process.

At least once by default, exactly once where it is asked for (`Pipeline.delivery`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keylane.errors import (
    BrokerUnavailableError,
    Fatal,
    HandlerError,
    KeylaneError,
    PeerError,
    RetryAfter,
    Throttled,
    UndecodableError,
    UsageError,
)
from keylane.version import __version__ as __version__

if TYPE_CHECKING:
    from keylane import http as http
    from keylane import schema as schema
    from keylane import spark as spark
    from keylane.consumer.snapshot import Snapshot
    from keylane.limits import AtOnce, Budget, Cap, Per
    from keylane.options import (
        Batch,
        Breaker,
        DeadLetter,
        ExactlyOnce,
        Flow,
        Halt,
        Processes,
        Rates,
        Retries,
        Skip,
        Threads,
        Transactional,
    )
    from keylane.parallel_consumer import ParallelConsumer
    from keylane.pipeline import Commit, External, Operations, Partitions, Pipeline, RebalanceListener, Steps
    from keylane.records import Context, DecodedRecord, FailedAttempt, Output, Produced, Record, Result

__all__ = [
    "AtOnce",
    "Batch",
    "Breaker",
    "BrokerUnavailableError",
    "Budget",
    "Cap",
    "Commit",
    "Context",
    "DeadLetter",
    "DecodedRecord",
    "ExactlyOnce",
    "External",
    "FailedAttempt",
    "Fatal",
    "Flow",
    "Halt",
    "HandlerError",
    "KeylaneError",
    "Operations",
    "Output",
    "ParallelConsumer",
    "Partitions",
    "PeerError",
    "Per",
    "Pipeline",
    "Processes",
    "Produced",
    "Rates",
    "RebalanceListener",
    "Record",
    "Result",
    "Retries",
    "RetryAfter",
    "Skip",
    "Snapshot",
    "Steps",
    "Threads",
    "Throttled",
    "Transactional",
    "UndecodableError",
    "UsageError",
]

_LAZY = {
    "keylane.parallel_consumer": ("ParallelConsumer",),
    "keylane.consumer.snapshot": ("Snapshot",),
    "keylane.limits": ("AtOnce", "Budget", "Cap", "Per"),
    "keylane.options": (
        "Batch",
        "Breaker",
        "DeadLetter",
        "ExactlyOnce",
        "Flow",
        "Halt",
        "Processes",
        "Rates",
        "Retries",
        "Skip",
        "Threads",
        "Transactional",
    ),
    "keylane.pipeline": ("Commit", "External", "Operations", "Partitions", "Pipeline", "RebalanceListener", "Steps"),
    "keylane.records": ("Context", "DecodedRecord", "FailedAttempt", "Output", "Produced", "Record", "Result"),
}
_SUBMODULES = ("http", "schema", "spark")
_MODULES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    """Names that are imported when they are first used: PySpark takes a second, the Kafka client a tenth of one, and
    the broker, which needs none of them, is to be ready in under half a second."""
    if name in _SUBMODULES:
        return importlib.import_module(f"keylane.{name}")
    if name in _MODULES:
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, whether or not they are imported yet, for completion and notebooks."""
    return sorted({*__all__, *_SUBMODULES, *(name for name in globals() if name.startswith("__"))})
