"""Delays, samples and the picture."""

import io
import itertools
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from keylane.demo.delays import Delay, delay_table, delays_of, kind_of, write_parquet
from keylane.demo.extras import require
from keylane.demo.observer import Observer, Sample, ToDo, rate
from keylane.demo.picture import save_picture
from keylane.demo.rows import COLUMNS, READINGS, row_of
from keylane.demo.service_process import ServiceStats
from keylane.errors import PeerError
from keylane.records import PlainMessage, Record

CALM: dict[str, Any] = dict.fromkeys(READINGS) | {"precip": 0, "visib": 10, "wind_speed": 5.0, "temp": 50}


def row(weather: dict[str, Any] | None, delay: int | None = 5, carrier: str = "UA") -> dict[str, Any]:
    readings = {f"weather_{name}": None if weather is None else weather[name] for name in READINGS}
    return {"carrier": carrier, "dep_delay": delay, "has_weather": weather is not None, **readings}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "fair"),
        ({"precip": 0.1}, "rain"),
        ({"precip": 0.1, "temp": 33.9}, "snow"),
        ({"precip": 0.1, "temp": None}, "rain"),
        ({"visib": 2.5, "wind_speed": 30}, "fog"),
        ({"wind_speed": 20}, "wind"),
        ({"wind_speed": None, "visib": None, "precip": None}, "fair"),
    ],
)
def test_kinds_of_weather(changes: dict[str, Any], kind: str) -> None:
    assert kind_of(row(CALM | changes)) == kind


def test_an_hour_without_readings_is_unknown() -> None:
    assert kind_of(row(None)) == "unknown"


def test_means_are_over_the_flights_that_departed() -> None:
    rows = [row(CALM, 10), row(CALM, None), row(CALM, -4), row(None, None), row(None, 7, "B6")]
    assert delays_of(rows) == [
        Delay("B6", "unknown", 1, 1, 7.0),
        Delay("UA", "fair", 3, 2, 3.0),
        Delay("UA", "unknown", 1, 0, None),
    ]


def test_the_table_names_carriers_and_shows_only_weather_that_occurred() -> None:
    stream = io.StringIO()
    delays = [Delay("B6", "rain", 2, 2, 12.25), Delay("UA", "fair", 3, 2, 3.0), Delay("UA", "rain", 1, 0, None)]
    Console(file=stream, width=120).print(delay_table(delays))
    lines = [line for line in stream.getvalue().splitlines() if "Air" in line or "Jet" in line]
    assert [" ".join(line.replace("│", " ").split()) for line in lines] == [
        "United Air Lines Inc. 4 3.0 –",
        "JetBlue Airways 2 – 12.2",
    ]
    assert "fog" not in stream.getvalue()


def test_a_record_becomes_a_row_that_parquet_takes(tmp_path: Path) -> None:
    value = (
        b'{"flight":{"carrier":"UA","dep_delay":null,"year":2013},"weather":'
        b'{"temp":39.02,"dewp":1,"humid":2,"wind_dir":270,"wind_speed":1.5,"wind_gust":null,"precip":0,'
        b'"pressure":1012,"visib":10,"origin":"EWR"}}'
    )
    record = Record(PlainMessage("e", 0, 0, b"k", value, (("source", b"flights-0@7"),)))
    without = Record(PlainMessage("e", 0, 1, b"k", b'{"flight":{"carrier":"B6"},"weather":null}'))
    write_parquet([row_of(record), row_of(without)], tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.column_names == list(COLUMNS)
    first, second = table.to_pylist()
    assert (first["source"], first["has_weather"], first["weather_wind_dir"]) == ("flights-0@7", True, 270.0)
    assert (second["source"], second["has_weather"], second["weather_temp"]) == ("", False, None)


LEFT = ToDo(9, 5)


def test_the_rate_is_over_the_last_seconds_only() -> None:
    samples = [Sample(0.0, 0, 0, LEFT), Sample(1.0, 1, 100, LEFT), Sample(3.0, 1, 700, LEFT)]
    assert rate([]) == rate(samples[:1]) == 0.0
    assert rate(samples) == 300.0
    assert rate(samples, over_s=10) == pytest.approx(700 / 3)


def test_the_observer_samples_counts_and_lag_and_survives_a_look_that_fails() -> None:
    looks, seen = iter([ToDo(3, 2), ToDo(2, 1), ToDo(1, 0)]), []
    calls, enough = itertools.count(1), threading.Event()

    def stats() -> ServiceStats:
        call = next(calls)
        if call == 2:
            raise PeerError("restarting")
        return ServiceStats(1, 6, 5, call)

    def on_sample(sample: Sample) -> None:
        seen.append(sample)
        if len(seen) == 3:
            enough.set()

    with Observer(stats, lambda: next(looks), on_sample) as observer:
        assert enough.wait(10)
    assert [(s.in_flight, s.answered, s.to_do) for s in seen[:3]] == [(5, 1, (3, 2)), (5, 3, (3, 2)), (5, 4, (2, 1))]
    assert observer.failed_looks == 1
    assert observer.samples[:3] == seen[:3]


RISING = [Sample(t / 5, t, t * t, ToDo(99, 99 - t)) for t in range(99)]


@pytest.mark.parametrize("samples", [[], [Sample(0.1, 1, 1, LEFT)], RISING])
def test_the_picture_is_a_modest_png(tmp_path: Path, samples: list[Sample]) -> None:
    save_picture(tmp_path / "p.png", samples, title="t", subtitle="s")
    from matplotlib.image import imread  # here, because every worker of the tests imports this file

    assert imread(tmp_path / "p.png").shape[:2] == (660, 960)
    assert (tmp_path / "p.png").stat().st_size < 200_000


def test_a_missing_extra_names_the_command() -> None:
    require("json")
    with pytest.raises(PeerError, match=r"no_such_package not installed: run `pip install 'keylane\[demo\]'`"):
        require("json", "no_such_package")
