"""The verdict can fail: each doctored output is found, and what at-least-once allows is not called a fault."""

import json
from collections.abc import Iterable

import pytest

from keylane.demo.verify import Verdict, Verifier
from keylane.options import Ordering
from keylane.records import PlainMessage, Record

HOUR = ("EWR", "2013-01-01T10:00:00Z")
WEATHER = {HOUR: {"temp": 39.02}}
FLIGHT = {"origin": HOUR[0], "time_hour": HOUR[1]}
ENRICHED = json.dumps({"flight": FLIGHT, "weather": WEATHER[HOUR]}).encode()


def an_input(offset: int, key: bytes | None, *, partition: int = 0, sequence: int | None = None) -> Record:
    header = str(offset if sequence is None else sequence).encode()
    value = json.dumps(FLIGHT).encode()
    return Record(PlainMessage("flights", partition, offset, key, value, (("sequence", header),)))


def an_output(
    place: int, source: int, key: bytes | None, *, of: int = 0, partition: int = 0, value: bytes | None = ENRICHED
) -> Record:
    header = ("source", f"flights-{of}@{source}".encode())
    return Record(PlainMessage("flights.enriched", partition, place, key, value, (header,)))


def judge(
    ordering: Ordering, inputs: Iterable[Record], outputs: Iterable[Record], expected: int | None = None
) -> Verdict:
    inputs = list(inputs)
    verifier = Verifier(ordering, len(inputs) if expected is None else expected, WEATHER)
    for record in inputs:
        verifier.add_input(record)
    for record in outputs:
        verifier.add_output(record)
    return verifier.verdict()


def outputs_of(sources: Iterable[int], key: bytes | None = b"N1") -> list[Record]:
    return [an_output(place, source, key) for place, source in enumerate(sources)]


def counts(verdict: Verdict) -> tuple[int, int, int | None]:
    return verdict.lost, verdict.duplicated, verdict.out_of_order


FOUR = [an_input(offset, b"N1") for offset in range(4)]


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_one_output_each_in_order_is_faultless(ordering: Ordering) -> None:
    verdict = judge(ordering, FOUR, outputs_of([0, 1, 2, 3]))
    assert verdict == Verdict(4, 0, 0, 0, 0, 0, ())
    assert verdict.faultless


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([0, 1, 3], (1, 0, 0)),
        ([], (4, 0, 0)),
        ([0, 1, 1, 2, 3], (0, 1, 0)),
        ([0, 2, 1, 3], (0, 0, 1)),
        ([3, 2, 1, 0], (0, 0, 3)),
        ([0, 1, 2, 1, 2, 3], (0, 2, 0)),  # a crash after 2 whose last commit stood at 1
        ([0, 1, 2, 1, 2, 3, 2, 3], (0, 4, 0)),  # and another one
        ([0, 1, 2, 3, 2, 1], (0, 2, 1)),  # but no run begins below where the run before it began
        ([0, 2, 3, 2, 1], (0, 1, 1)),  # and a run never begins with a record that had not run
    ],
)
def test_what_a_log_of_one_key_shows(sources: list[int], expected: tuple[int, int, int]) -> None:
    assert counts(judge("key", FOUR, outputs_of(sources))) == expected


def test_keys_are_judged_apart_under_key_and_together_under_partition() -> None:
    inputs = [an_input(0, b"N1"), an_input(1, b"N2")]
    outputs = [an_output(0, 1, b"N2"), an_output(1, 0, b"N1")]
    assert counts(judge("key", inputs, outputs)) == (0, 0, 0)
    assert counts(judge("partition", inputs, outputs)) == (0, 0, 1)
    assert counts(judge("unordered", inputs, outputs)) == (0, 0, None)


def test_null_keys_have_no_order_under_key_but_one_under_partition() -> None:
    inputs = [an_input(0, None), an_input(1, None)]
    outputs = [an_output(0, 1, None), an_output(1, 0, None)]
    assert counts(judge("key", inputs, outputs)) == (0, 0, 0)
    assert counts(judge("partition", inputs, outputs)) == (0, 0, 1)


def test_partitions_of_the_input_are_judged_apart() -> None:
    inputs = [an_input(5, b"N1"), an_input(0, b"N1", partition=1, sequence=0)]
    outputs = [an_output(0, 5, b"N1"), an_output(1, 0, b"N1", of=1)]
    assert judge("partition", inputs, outputs, expected=0).out_of_order == 0


def test_an_order_spread_over_output_partitions_cannot_be_shown_and_counts_against_it() -> None:
    outputs = [an_output(0, 0, b"N1"), an_output(0, 1, b"N1", partition=1)]
    assert judge("key", FOUR[:2], outputs).out_of_order == 1


@pytest.mark.parametrize(
    "value",
    [
        json.dumps({"flight": FLIGHT, "weather": {"temp": 50.0}}).encode(),
        json.dumps({"flight": FLIGHT, "weather": None}).encode(),
        json.dumps({"flight": FLIGHT | {"origin": "JFK"}, "weather": WEATHER[HOUR]}).encode(),
        b"{",
        None,
    ],
)
def test_another_flight_or_weather_is_altered(value: bytes | None) -> None:
    verdict = judge("key", FOUR[:1], [an_output(0, 0, b"N1", value=value)])
    assert verdict.altered == 1
    assert not verdict.faultless
    assert verdict.examples == (
        "Record(flights.enriched-0@0) does not hold the key, the flight and the weather of flights-0@0",
    )


def test_another_key_is_altered() -> None:
    assert judge("unordered", FOUR[:1], [an_output(0, 0, b"N2")]).altered == 1


def test_a_flight_without_weather_has_null_for_it() -> None:
    flight = {"origin": "LGA", "time_hour": "2013-12-31T23:00:00Z"}
    record = Record(PlainMessage("flights", 0, 0, b"N1", json.dumps(flight).encode(), (("sequence", b"0"),)))
    value = json.dumps({"flight": flight, "weather": None}).encode()
    assert judge("key", [record], [an_output(0, 0, b"N1", value=value)]).faultless


@pytest.mark.parametrize(
    "header", [b"", b"flights", b"flights-0", b"flights-0@", b"flights-0@7", b"other-0@0", b"\xff"]
)
def test_an_output_of_no_known_record_is_foreign(header: bytes) -> None:
    output = Record(PlainMessage("flights.enriched", 0, 0, b"N1", ENRICHED, (("source", header),)))
    verdict = judge("key", FOUR[:1], [output])
    assert (verdict.foreign, verdict.lost) == (1, 1)


def test_an_output_without_headers_is_foreign() -> None:
    assert judge("key", FOUR[:1], [Record(PlainMessage("flights.enriched", 0, 0, b"N1", ENRICHED))]).foreign == 1


def test_flights_that_never_reached_the_input_are_lost_and_named() -> None:
    verdict = judge("key", FOUR, outputs_of([0, 1, 2, 3]), expected=6)
    assert verdict.lost == 2
    assert verdict.examples == ("2 of 6 flights are not in the input",)


def test_a_flight_twice_in_the_input_or_behind_a_later_one_is_found() -> None:
    inputs = [an_input(0, b"N1", sequence=1), an_input(1, b"N1", sequence=0), an_input(2, b"N1", sequence=1)]
    verdict = judge("key", inputs, outputs_of([0, 1, 2]), expected=2)
    assert counts(verdict) == (0, 1, 1)


def test_only_the_first_findings_are_named() -> None:
    verdict = judge("key", [an_input(n, b"N1") for n in range(100)], [])
    assert verdict.lost == 100
    assert verdict.examples == tuple(f"flights-0@{n} has no output" for n in range(5))
