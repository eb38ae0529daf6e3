"""What a run of the demo can be told, validated where it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from keylane.demo.data import FLIGHTS_IN_YEAR
from keylane.errors import UsageError
from keylane.options import Ordering

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_RECORDS: dict[Ordering, int] = {"key": 20_000, "unordered": 20_000, "partition": 3_000}
"""PARTITION works on 8 records at once, so at 50 ms each it does 160 a second at best."""

MAX_LANES = 64
"""More lanes than partitions only stand by; far more are a slip of the keyboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Raises `UsageError` for what cannot work."""

    ordering: Ordering = "key"
    records: int | None = None
    """Flights to process; None takes the default of the ordering, or what a kept folder already holds."""
    spark: bool = True
    lanes: int = 4
    master: str | None = None
    """Spark's master; None gives each lane a task slot in this machine and leaves one free."""
    spark_conf: tuple[tuple[str, str], ...] = ()
    """More settings of the session, by Spark's own names."""
    bootstrap: str | None = None
    """An Apache Kafka to use; None starts the embedded broker."""
    client_settings: Mapping[str, str] | None = None
    """librdkafka's settings for clients of `bootstrap`: TLS, SASL."""
    keep: Path | None = None
    """A folder for all that the run makes, with which a later run goes on; None keeps nothing but the results."""
    results: Path | None = None
    """Where the picture and the Parquet files go; None takes `keep`, else the current folder's `keylane-demo`."""
    latency_ms: int = 50
    max_concurrency: int = 600
    """Requests at once, over all lanes together."""
    ui: bool = False
    """Serve the page of `keylane ui` on the run, until a stop request."""

    def __post_init__(self) -> None:
        if self.ordering not in get_args(Ordering):
            raise UsageError(f"--ordering {self.ordering}: give one of {', '.join(get_args(Ordering))}")
        if self.records is not None and not 1 <= self.records <= FLIGHTS_IN_YEAR:
            raise UsageError(f"--records {self.records}: give a number from 1 to {FLIGHTS_IN_YEAR}, or `all`")
        if not 1 <= self.lanes <= MAX_LANES:
            raise UsageError(f"--lanes {self.lanes}: give a number from 1 to {MAX_LANES}")
        if self.latency_ms < 0:
            raise UsageError(f"--latency-ms {self.latency_ms}: give a number of milliseconds from 0")
        if self.max_concurrency < self.lanes:
            raise UsageError(f"--max-concurrency {self.max_concurrency}: give at least one a lane ({self.lanes})")
        if not self.spark and (self.master is not None or self.spark_conf):
            name, value = ("--master", self.master) if self.master else ("--conf", "=".join(self.spark_conf[0]))
            raise UsageError(f"{name} {value}: leave it out with --no-spark, which runs in this process")
        if self.master is not None:
            check_local_slots(self.master, self.lanes, "--master")
        if self.client_settings and self.bootstrap is None:
            raise UsageError("--command-config names no bootstrap.servers: give --bootstrap, or leave it out")
        if self.bootstrap is not None and not _is_address_list(self.bootstrap):
            raise UsageError(f"--bootstrap {self.bootstrap}: give HOST:PORT (several with commas)")

    @property
    def spark_master(self) -> str:
        return self.master or f"local[{self.lanes + 1}]"


def check_local_slots(master: str, lanes: int | None, option: str) -> None:
    """Raises `UsageError` at once for what Spark would be started for in vain: a local master with too few task slots.

    Lanes are long tasks and Spark does not preempt, so one slot must stay free for the session's other jobs.
    """
    local = re.fullmatch(r"local(?:\[(\d+)(?:,\d+)?\])?", master)
    if local is None:
        return
    slots = int(local[1] or 1)
    if slots < (lanes or 1) + 1:
        fewer = f", or --lanes {slots - 1}" if slots > 1 else ""
        raise UsageError(
            f"{option} {master}: {lanes or 1} lanes and a free task slot take {(lanes or 1) + 1}: "
            f"give local[{(lanes or 1) + 1}]{fewer}"
        )


def _is_address_list(text: str) -> bool:
    parts = [address.rpartition(":") for address in text.split(",")]
    return all(host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536 for host, _, port in parts)
