"""keylane: Kafka records in parallel, in order per key, each one once, on Spark or in one Python process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keylane.errors import BrokerUnavailableError, Fatal, HandlerError, KeylaneError, PeerError, RetryAfter, UsageError
from keylane.options import DeadLetter, Halt, Pipeline, Rates, RebalanceListener, Retries, Skip
from keylane.records import Context, DecodedRecord, Output, Produced, Record, Result

if TYPE_CHECKING:
    from keylane import http as http
    from keylane import schema as schema
    from keylane import spark as spark
    from keylane.consumer import ParallelConsumer
    from keylane.engine.snapshot import Snapshot

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailableError",
    "Context",
    "DeadLetter",
    "DecodedRecord",
    "Fatal",
    "Halt",
    "HandlerError",
    "KeylaneError",
    "Output",
    "ParallelConsumer",
    "PeerError",
    "Pipeline",
    "Produced",
    "Rates",
    "RebalanceListener",
    "Record",
    "Result",
    "Retries",
    "RetryAfter",
    "Skip",
    "Snapshot",
    "UsageError",
]

_LAZY = {"ParallelConsumer": "keylane.consumer", "Snapshot": "keylane.engine.snapshot"}


def __getattr__(name: str) -> Any:
    """Names that are imported when they are first used: PySpark takes a second, the Kafka client a tenth of one."""
    if name in ("http", "schema", "spark"):
        return importlib.import_module(f"keylane.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
