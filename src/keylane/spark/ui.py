"""A lane's name in Spark's UI while it runs: group, lane and partitions, and how fast and how far it is.

Spark fixes a job's description when the job starts, and a lane learns its partitions later, and again with every
rebalance. The description is therefore replaced in the store that the UI reads, and in what Spark writes that store
from. Neither is public: where this does not work (another store, another Spark), the UI shows the name without
partitions. It cannot lead to keylane's page: Spark shows links to its own pages alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

    from keylane.consumer.snapshot import Snapshot

MOST_NAMED = 8
"""Partitions in a name; a lane may have hundreds."""


def lane_words(lane: int, group: str, partitions: tuple[str, ...] | None = None, figures: str = "") -> str:
    """`keylane lane 0 of group weather: flights-0, flights-3; 412 records/s`, with `figures` at the end."""
    words = f"keylane lane {lane} of group {group}"
    if partitions is None:
        return words
    named = ", ".join(partitions[:MOST_NAMED]) or "no partition"
    more = f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else ""
    return f"{words}: {named}{more}{'; ' if figures else ''}{figures}"


def lane_figures(total: Snapshot, rate: float) -> str:
    """`412 records/s, 200 in flight, 2,310 remaining, lag 2,471`; without what is not known yet."""
    figures = [f"{rate:,.0f} records/s", f"{total.in_flight:,} in flight"]
    if total.remaining is not None:
        figures.append(f"{total.remaining:,} remaining")
    if total.lag is not None:
        figures.append(f"lag {total.lag:,}")
    return ", ".join(figures)


def describe_job(context: SparkContext, job: int, words: str) -> None:
    """Replaces the description of a job that runs. Raises what py4j does when the store is another one."""
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - what the UI reads
    described = context._jvm.scala.Some(words)  # type: ignore[union-attr]  # noqa: SLF001
    live = _field(store.listener().get(), "liveJobs")[0].get(job)
    for info in (live.get(), store.job(job)):  # what the store is written from with every heartbeat, and what is in it
        _, field = _field(info, "description")
        field.set(info, described)


def _field(owner: Any, name: str) -> tuple[Any, Any]:
    """The value of a private field, and the field."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner), field
