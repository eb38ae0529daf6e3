"""What the run is for: delay by carrier and weather. In plain Python here; on Spark in `spark_report`."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.demo.data import read_airlines
from keylane.demo.rows import arrow_schema, row_of
from keylane.kafka.bulk import read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rich.table import Table

FREEZING_F = 34.0
"""Degrees Fahrenheit, as in the table, below which rain is called snow."""
POOR_VISIBILITY_MILES = 3.0
STRONG_WIND_MPH = 20.0

DELAYED_MIN = 15.0
"""A flight counts as delayed from this many minutes on."""

WEATHERS = ("fair", "wind", "fog", "rain", "snow", "unknown")
"""From calm to rough; unknown is an hour without a row in the weather table."""

Row = dict[str, Any]
"""A flat row, see `keylane.demo.rows`."""


@dataclass(frozen=True, slots=True)
class Delay:
    """One cell: the flights of a carrier in one kind of weather."""

    carrier: str
    weather: str
    flights: int
    departed: int
    mean_delay_min: float | None
    """Minutes of departure delay over those that departed; None when none did."""


def kind_of(row: Row) -> str:
    """One of `WEATHERS`. A missing reading counts as calm; `spark_report` has the same rule as an expression."""
    if not row["has_weather"]:
        return "unknown"
    if (row["weather_precip"] or 0) > 0:
        temperature = row["weather_temp"]
        return "snow" if temperature is not None and temperature < FREEZING_F else "rain"
    if row["weather_visib"] is not None and row["weather_visib"] < POOR_VISIBILITY_MILES:
        return "fog"
    if row["weather_wind_speed"] is not None and row["weather_wind_speed"] >= STRONG_WIND_MPH:
        return "wind"
    return "fair"


def delays_of(rows: Iterable[Row]) -> list[Delay]:
    """Counts and means, ordered by carrier and weather."""
    cells: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for row in rows:
        cells[row["carrier"], kind_of(row)].append(row["dep_delay"])
    result = []
    for (carrier, weather), minutes in sorted(cells.items()):
        departed = [delay for delay in minutes if delay is not None]
        mean = sum(departed) / len(departed) if departed else None
        result.append(Delay(carrier, weather, len(minutes), len(departed), mean))
    return result


def read_rows(servers: str, topic: str, settings: Mapping[str, str] | None = None) -> list[Row]:
    """The rows of the enriched topic, one of each source record (a replay may have left more outputs)."""
    rows: dict[str, Row] = {}
    for batch in read_to_end(servers, topic, settings=settings):
        for record in batch:
            row = row_of(record)
            rows.setdefault(row["source"], row)
    return list(rows.values())


def write_parquet(rows: list[Row], path: Path) -> None:
    """A folder with one Parquet file, by pyarrow, for runs without Spark; replaces what an earlier run wrote there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema()), path / "part-00000.parquet")


def delay_table(delays: Iterable[Delay]) -> Table:
    """Mean departure delay in minutes, a row a carrier (most flights first), a column a kind of weather."""
    from rich.table import Table

    names = read_airlines()
    rows: dict[str, dict[str, Delay]] = defaultdict(dict)
    for delay in delays:
        rows[delay.carrier][delay.weather] = delay
    shown = [weather for weather in WEATHERS if any(weather in cells for cells in rows.values())]
    table = Table()
    table.add_column("carrier", no_wrap=True)
    table.add_column("flights", justify="right")
    for weather in shown:
        table.add_column(weather, justify="right")
    for carrier, cells in sorted(rows.items(), key=lambda row: -_flights(row[1])):
        means = [_minutes(cells.get(weather)) for weather in shown]
        table.add_row(names.get(carrier, carrier), f"{_flights(cells):,}", *means)
    return table


def _flights(cells: Mapping[str, Delay]) -> int:
    return sum(cell.flights for cell in cells.values())


def _minutes(delay: Delay | None) -> str:
    """With markup: red from where airlines call a flight delayed, green for ahead of schedule."""
    if delay is None or delay.mean_delay_min is None:
        return "[dim]–[/]"
    style = "red" if delay.mean_delay_min >= DELAYED_MIN else "green" if delay.mean_delay_min <= 0 else "default"
    return f"[{style}]{delay.mean_delay_min:.1f}[/]"
