"""keylane: Kafka records in parallel, in order per key, each one once, on Spark or in one Python process."""

from keylane.errors import BrokerUnavailableError, Fatal, HandlerError, KeylaneError, PeerError, UsageError
from keylane.options import DeadLetter, Halt, Pipeline, Retries, Skip
from keylane.records import Context, Output, Record

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
