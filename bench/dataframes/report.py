"""The figures of `make bench-dataframes` as Markdown tables, for docs/benchmarks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pages import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def markdown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table for each part that has been measured."""
    made = [
        table(
            "**A batch query over 4 partitions, `local[2]`**",
            ("source", "records", "bytes of a value", "records a second", "load"),
            [
                (
                    f"`{one['source']}`",
                    f"{one['records']:,}",
                    f"{one['value_bytes']:,}",
                    f"{one['records_per_s']:,}",
                    f"{one['load']:.1f}",
                )
                for one in found.get("rate", ())
            ],
        ),
        table(
            "**A micro-batch of 100 records into `noop`**",
            ("source", "batches", "p50", "load"),
            [
                (f"`{one['source']}`", one["batches"], f"{one['p50_ms']:.0f} ms", f"{one['load']:.1f}")
                for one in found.get("latency", ())
            ],
        ),
        table(
            "**A micro-batch of 300,000 rows of 200 bytes from one task, `local[2]`**",
            ("sink", "batches", "seconds", "processor time, Spark's and the broker's", "load"),
            [
                (
                    one["sink"],
                    one["batches"],
                    f"{one['seconds']:.2f} s",
                    "" if one["processor_s"] is None else f"{one['processor_s']:.2f} s",
                    f"{one['load']:.1f}",
                )
                for one in found.get("sinks", ())
            ],
        ),
        table(
            "**10,000 calls of 50 ms, two tasks, 100 at once in each** (the UDF: one)",
            ("way", "limit", "seconds", "seconds / limit", "undisturbed runs", "the slowest run", "others took of it"),
            [
                (
                    one["way"],
                    f"{one['limit_s']:.1f} s" if one["limit_s"] else "",
                    f"{one['seconds']:.2f} s",
                    f"{one['over_limit']:.2f}" if one["limit_s"] else "",
                    f"{one['undisturbed']} of {len(one['runs'])}",
                    f"{one['slowest_s']:.2f} s",
                    _share(one["slowest_others"]),
                )
                for one in found.get("calls", ())
            ],
        ),
        table(
            "**200 records a second, each a call of 5 ms, while nothing is wrong: their age at the sink**",
            ("way", "rounds of 10 s", "p50", "p99", "load"),
            [
                (
                    one["way"],
                    one["rounds"],
                    f"{one['p50_ms']:,.0f} ms",
                    f"{one['p99_ms']:,.0f} ms",
                    f"{one['load']:.1f}",
                )
                for one in found.get("rest", ())
            ],
        ),
        table(
            "**A record whose service hangs for 10 s, and one that is refused for 10 s; 200 records a second**",
            ("way", "records", "p50", "p99", "other keys: p50", "p99", "seconds in which nothing ended", "load"),
            [
                (
                    one["way"],
                    f"{one['records']:,}",
                    f"{one['p50_ms']:,.0f} ms",
                    f"{one['p99_ms']:,.0f} ms",
                    f"{one['others_p50_ms']:,.0f} ms",
                    f"{one['others_p99_ms']:,.0f} ms",
                    one["seconds_without_a_record"],
                    f"{one['load']:.1f}",
                )
                for one in found.get("slow", ())
            ],
        ),
    ]
    return "\n\n".join(one for one in made if one)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
