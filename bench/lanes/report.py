"""The figures of `make bench-lanes` as Markdown tables, for docs/benchmarks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pages import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def markdown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table for each part that has been measured."""
    made = [
        table(
            "**From the first record to the last**",
            ("row", "limit", "one process", "a lane", "JVM Parallel Consumer", "lane / process", "load"),
            [
                (
                    one["row"],
                    f"{one['limit_s']:.2f} s",
                    f"{one['process_s']:.2f} s",
                    f"{one['lane_s']:.2f} s",
                    "" if one.get("jvm_s") is None else f"{one['jvm_s']:.2f} s",
                    f"{one['lane_over_process']:.2f}",
                    f"{one['load']:.1f}",
                )
                for one in found.get("table", ())
            ],
        ),
        table(
            "**From the call of `start` to a warm lane's first record**",
            ("seconds", "load"),
            [(f"{one['first_record_s']:.2f} s", f"{one['load']:.1f}") for one in found.get("start", ())],
        ),
        table(
            "**From append to output: 200 records a second, each a call of 5 ms**",
            ("way", "records", "p50", "p99", "load"),
            [
                (
                    one["way"],
                    f"{one['records']:,}",
                    f"{one['p50_ms']:,.0f} ms",
                    f"{one['p99_ms']:,.0f} ms",
                    f"{one['load']:.1f}",
                )
                for one in found.get("latency", ())
            ],
        ),
        table(
            "**Lanes over 16 partitions**",
            ("handlers", "lanes", "records a second", "of linear", "load"),
            [
                (
                    one["handlers"],
                    one["lanes"],
                    f"{one['records_per_s']:,.0f}",
                    f"{one['of_linear']:.2f}",
                    f"{one['load']:.1f}",
                )
                for one in found.get("scaling", ())
            ],
        ),
        table(
            "**One record of 10 s among records of 5 ms, 500 a second for 40 s**",
            ("way", "records", "p50", "p99", "seconds in which nothing ended"),
            [
                (
                    one["way"],
                    f"{one['records']:,}",
                    f"{one['p50_ms']:,.0f} ms",
                    f"{one['p99_ms']:,.0f} ms",
                    one["seconds_without_a_record"],
                )
                for one in found.get("slow", ())
            ],
        ),
        table(
            "**The driver's side of many lanes, which processes play**",
            (
                "lanes",
                "all run after",
                "cores",
                "cores at rest",
                "memory",
                "age of what is shown",
                "the longest",
                "a tenth killed: all run",
                "half as many",
                "load",
            ),
            [
                (
                    f"{one['lanes']:,}",
                    f"{one['start_s']:.1f} s",
                    f"{one['cores']:.3f}",
                    f"{one['rest_cores']:.3f}",
                    f"{one['memory_mb']:.0f} MB",
                    f"{one['age_p50_s']:.2f} s",
                    f"{one['age_max_s']:.2f} s",
                    f"{one['wave_s']:.1f} s",
                    f"{one['fewer_s']:.1f} s",
                    f"{one['load']:.1f}",
                )
                for one in found.get("driver", ())
            ],
        ),
        table(
            "**A group of many members on Apache Kafka, which one process plays: what its broker has to do**",
            ("members", "step", "settled after", "processor time", "requests", "bytes", "longest", "load"),
            [
                row
                for one in found.get("members", ())
                for row in (
                    *(_step(one, name) for name in ("start", "goes", "comes") if f"{name}_s" in one),
                    (
                        "",
                        "at rest, a second",
                        "",
                        f"{one['rest_cores']:.2f} s",
                        f"{one['rest_requests_per_s']:,}",
                        f"{one['rest_kb_per_s']:.0f} KB",
                        "",
                        f"{one['load']:.1f}",
                    ),
                )
            ],
        ),
    ]
    return "\n\n".join(one for one in made if one)


def _step(one: Mapping[str, Any], name: str) -> tuple[str, ...]:
    says = {"start": "all start", "goes": "one leaves", "comes": "one comes"}
    if one["kind"] == "static":
        says["comes"] = "one is gone for a moment"
    return (
        f"{one['members']:,} {one['kind']}" if name == "start" else "",
        says[name],
        f"{one[f'{name}_s']:.1f} s",
        f"{one[f'{name}_cpu_s']:.2f} s",
        f"{one[f'{name}_requests']:,}",
        f"{one[f'{name}_kb']:,} KB",
        f"{one[f'{name}_longest_kb']:.0f} KB",
        f"{one['load']:.1f}",
    )
