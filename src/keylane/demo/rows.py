"""One enriched flight as a flat row: the columns of the Parquet files, for Spark and for pyarrow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError

if TYPE_CHECKING:
    import pyarrow as pa

    from keylane.records import Record

FLIGHT_COLUMNS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "string",
}

READINGS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
"""The weather's columns that the flight does not have; they are named `weather_…` in a row."""

COLUMNS = (
    {"source": "string"}
    | FLIGHT_COLUMNS
    | {"has_weather": "boolean"}
    | {f"weather_{reading}": "double" for reading in READINGS}
)
"""Name to Spark type. `source` is the input record, `topic-partition@offset`; `has_weather` is false for an hour that
the weather table does not have."""

DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def row_of(record: Record) -> dict[str, Any]:
    """The row of a record of the enriched topic."""
    if record.value is None:
        raise PeerError(f"{record.topic}-{record.partition}@{record.offset} has no value, and is no enriched flight")
    enriched = json.loads(record.value)
    source = next((value for name, value in record.headers if name == "source" and value is not None), b"")
    weather = enriched["weather"]
    readings = {f"weather_{reading}": None if weather is None else weather[reading] for reading in READINGS}
    return {"source": source.decode(), **enriched["flight"], "has_weather": weather is not None, **readings}


def arrow_schema() -> pa.Schema:
    """The same columns for Arrow."""
    import pyarrow as pa

    types = {"int": pa.int32(), "string": pa.string(), "double": pa.float64(), "boolean": pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
