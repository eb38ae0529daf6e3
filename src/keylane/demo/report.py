"""What a run of the demo tells: to people in a few lines, to machines as one JSON object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keylane.demo.delays import Delay
    from keylane.demo.verify import Verdict
    from keylane.kafka.group_standing import Standing

ORDER_WORDS = {"key": "in order per aircraft", "partition": "in order per partition", "unordered": "in any order"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run that went to its end."""

    ordering: str
    mode: str
    """`4 Spark lanes on local[5]`, or `in one process`."""
    processed: int
    """Records that this run processed; fewer than the verdict's when an earlier run had done a part."""
    seconds: float
    """From the pipeline's start to lag 0."""
    total_seconds: float
    """From the first step to the last."""
    peak_in_flight: int
    """Requests that the service held at once, by its own count."""
    lag: int
    """Log ends less committed offsets at the end, read by a client of its own."""
    verdict: Verdict
    delays: tuple[Delay, ...]
    picture: str | None
    parquet: str | None
    """None without Spark and pyarrow."""
    broker_restarts: int = 0
    """How often the demo's own broker ended and was brought back."""

    @property
    def faultless(self) -> bool:
        return self.verdict.faultless and self.lag == 0

    @property
    def records_per_second(self) -> float:
        return self.processed / self.seconds if self.seconds else 0.0

    @property
    def headline(self) -> str:
        """How many, in what order, how fast."""
        speed = f"{self.records_per_second:,.0f} a second in {self.seconds:.1f} s"
        return f"{self.processed:,} flights, {ORDER_WORDS[self.ordering]}: {speed}"

    @property
    def judgement(self) -> str:
        """What the verdict counted."""
        verdict = self.verdict
        order = "" if verdict.out_of_order is None else f", {verdict.out_of_order} out of order"
        return f"{verdict.lost} lost, {verdict.duplicated} duplicated{order}, {verdict.altered + verdict.foreign} wrong"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object. out_of_order is null for UNORDERED."""
        verdict = asdict(self.verdict)
        findings = verdict.pop("examples")
        return {
            "records": verdict.pop("records"),
            "processed": self.processed,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.records_per_second, 1),
            "peak_in_flight": self.peak_in_flight,
            **verdict,
            "lag": self.lag,
            "ordering": self.ordering,
            "mode": self.mode,
            "total_seconds": round(self.total_seconds, 3),
            "broker_restarts": self.broker_restarts,
            "picture": self.picture,
            "parquet": self.parquet,
            "interrupted": False,
            "findings": list(findings),
        }

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.headline}, {self.mode}",
            f"the service held up to {self.peak_in_flight:,} requests at once",
            f"output held against input ({self.verdict.records:,} records): {self.judgement}; lag {self.lag}",
            *(f"  {finding}" for finding in self.verdict.examples),
        ]

    def result_lines(self) -> list[str]:
        """Where the results are."""
        parquet = self.parquet or "not written (that takes Spark or pyarrow)"
        return [f"picture   {self.picture}", f"Parquet   {parquet}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run that was asked to stop before its end, and where it stands."""

    during: str
    """The step, as its title said."""
    records: int
    """Flights the run is about."""
    standing: tuple[Standing, ...]
    """By partition of the input; empty when it had not been made."""
    kept: str | None
    """The folder with which a later run goes on."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "interrupted": True,
            "during": self.during,
            "records": self.records,
            "complete": sum(one.complete for one in self.standing),
            "lag": sum(one.lag for one in self.standing),
            "remaining": sum(one.remaining for one in self.standing),
            "partitions": [asdict(one) for one in self.standing],
            "keep": self.kept,
        }

    def lines(self) -> list[str]:
        """For people."""
        complete = sum(one.complete for one in self.standing)
        lines = [
            f"stopped during: {self.during}",
            f"{complete:,} of {self.records:,} flights are complete and committed",
        ]
        lines += [f"  {one}" for one in self.standing]
        if self.kept is None:
            return [*lines, "nothing is kept: with --keep DIR a stopped run can go on"]
        return [*lines, f"the next run with --keep {self.kept} goes on there"]
