"""keylane: Kafka records in parallel, in order per key, each one once, on Spark or in one Python process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keylane.errors import BrokerUnavailableError, Fatal, HandlerError, KeylaneError, PeerError, UsageError
from keylane.options import DeadLetter, Halt, Pipeline, Retries, Skip
from keylane.records import Context, Output, Record

if TYPE_CHECKING:
    from keylane import spark as spark

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailableError",
    "Context",
    "DeadLetter",
    "Fatal",
    "Halt",
    "HandlerError",
    "KeylaneError",
    "Output",
    "PeerError",
    "Pipeline",
    "Record",
    "Retries",
    "Skip",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    """`keylane.spark` is imported when it is first used: it needs PySpark, and takes a second."""
    if name == "spark":
        return importlib.import_module("keylane.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
