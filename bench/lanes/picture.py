"""The picture of the slow record: records a second and their 99th percentile, second by second, for each way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lanes.slow import Latencies

COLOURS = ("#1f6f8b", "#e07a3f")


def by_second(found: Mapping[str, Latencies]) -> list[dict[str, Any]]:
    """For each way: what ended in each second of the stream, and overall figures."""
    made = []
    for way, latencies in found.items():
        seconds: dict[int, list[float]] = {}
        for end, latency in latencies:
            seconds.setdefault(int(end), []).append(latency)
        every = [seconds.get(second, []) for second in range(max(seconds) + 1)]
        made.append(
            {
                "way": way,
                "records": len(latencies),
                "p50_ms": round(1_000 * quantile([one for _, one in latencies], 0.5), 1),
                "p99_ms": round(1_000 * quantile([one for _, one in latencies], 0.99), 1),
                "seconds_without_a_record": sum(not one for one in every),
                "seconds": [[len(one), round(1_000 * quantile(one, 0.99), 1) if one else None] for one in every],
            }
        )
    return made


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


LANES = "seconds of the stream; one record of 10 s comes at 12 s, all others take 5 ms"


def draw(path: Path, found: Sequence[Mapping[str, Any]], what: str = LANES) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for one, colour in zip(found, COLOURS, strict=False):
        seconds = range(len(one["seconds"]))
        above.plot(seconds, [count for count, _ in one["seconds"]], color=colour, label=one["way"])
        below.plot(seconds, [p99 for _, p99 in one["seconds"]], color=colour, marker=".", label=one["way"])
    above.set_ylabel("records that ended, a second")
    below.set_ylabel("99th percentile of their age, ms")
    below.set_yscale("log")
    below.set_xlabel(what)
    above.legend(frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
