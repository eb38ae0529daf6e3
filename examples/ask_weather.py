"""Asks an HTTP service for each record, and produces what it says."""

import keylane as kl
from keylane import http


def request(record: kl.Record) -> http.Request:
    return http.Request("GET", "http://127.0.0.1:8080/weather", params={"hour": (record.value or b"").decode()})


def answered(record: kl.Record, response: http.Response) -> kl.Output:
    return kl.Output("flights.enriched", key=record.key, value=response.body)


calls = http.Calls(
    request=request,
    on_response=answered,
    retry_statuses={429, 503},  # tried again, after Retry-After when there is one
    fatal_statuses={400, 404},  # not tried again
    timeout_ms=10_000,
)

weather = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "weather"},
    topics=["flights"],
    handler=calls,
    resource=calls.pool,
    max_concurrency=10_000,
    on_exhausted=kl.DeadLetter("flights.dead"),
    offset_reset="earliest",
)
