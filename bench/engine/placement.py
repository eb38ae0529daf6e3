"""What `one_processor` changes: keylane with its threads on one processor, and on all, by turns on the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.contest import Contest, Standing, keylane
from engine.rows import Row, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = ("key-50/16", "unordered/16", "key-50/100", "key-1000/100", "unordered/100", "noop-key/16", "noop-unordered/16")


def measure(bootstrap: str, repeat: int, selected: Sequence[Row] | None = None) -> dict[str, str]:
    """For the docs: the medians of the runs, of `ROWS` unless others are selected."""
    commands = {
        f"{mode}, {processors}": keylane(bootstrap, mode, processors)
        for mode in ("threads", "asyncio")
        for processors in ("one", "all")
    }
    lines = [f"| row | {' | '.join(commands)} |", "|---|" + "---:|" * len(commands)]
    with Contest(bootstrap, commands) as contest:
        for row in selected or rows(list(ROWS), quick=False):
            contest.fill([row.topic])
            contest.warm_up(row)
            standings = contest.play(row, repeat, lambda *_: None)
            lines.append(f"| {row.name} | {' | '.join(cell(row, one) for one in standings.values())} |")
            print(lines[-1], flush=True)
    return {
        "title": "keylane on one processor, and on all: seconds (records a second where the handler does nothing), and "
        "processor time a record",
        "markdown": "\n".join(lines) + "\n",
    }


def cell(row: Row, standing: Standing) -> str:
    processor_us = standing.median(lambda result: result.processor_us_a_record)
    rate = standing.median(lambda result: result.records_per_s)
    took = f"{row.topic.records / rate:.3f} s" if row.topic.sleeping else f"{rate:,.0f}/s"
    return f"{took} · {processor_us:.1f} µs"
