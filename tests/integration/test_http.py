"""`keylane.http` against a real server: statuses, Retry-After, timeouts, several requests, streams, and a full pool."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

import keylane as kl
from keylane import http
from keylane.broker.process import BrokerProcess
from kit.http_service import Service
from kit.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("http") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    made = Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))
    made.create(2)
    made.fill((b"%d" % (number % 10), number % 2) for number in range(RECORDS))
    return made


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as made:
        yield made


def run(stage: Stage, service: Service, options: dict[str, Any] | None = None, **more: Any) -> kl.Snapshot:
    """One GET a record, by its number, with options for `Calls` and for the pipeline."""

    def request(record: kl.Record) -> http.Request:
        return http.Request("GET", f"{service.url}/{int(record.value or b'')}")

    calls = http.Calls(**({"request": request} | (options or {})))
    more.setdefault("retries", kl.Retries(max_attempts=3, delay_ms=1))
    return stage.run(calls, resource=calls.pool, **more)


def test_responses_go_to_a_callback_whose_outputs_are_produced(stage: Stage, service: Service) -> None:
    out = "out-" + stage.topic
    stage.create(1, out)

    async def echo(request: web.Request) -> web.Response:
        assert request.headers["x-tenant"] == "t1"
        assert request.query["q"] == "a b&c"
        return web.json_response({"said": await request.json()}, status=201)

    service.answer = lambda request, _: echo(request)

    def request(record: kl.Record) -> http.Request:
        number = int(record.value or b"")
        return http.Request(
            "POST", f"{service.url}/{number}", headers={"x-tenant": "t1"}, params={"q": "a b&c"}, json={"n": number}
        )

    async def on_response(record: kl.Record, response: http.Response) -> kl.Output:
        assert response.status == 201
        assert response.headers["content-type"].startswith("application/json")
        return kl.Output(out, key=record.key, value=b"%d" % response.json()["said"]["n"])

    snapshot = run(stage, service, {"request": request, "on_response": on_response})
    assert snapshot.processed == RECORDS
    assert sorted(int(one.value or b"") for one in stage.read(out)) == list(range(RECORDS))
    assert set(service.asked.values()) == {1}


def test_responses_come_as_a_stream(stage: Stage, service: Service) -> None:
    service.answer = lambda request, _: web.Response(text=f"answer {request.path}")

    async def request(record: kl.Record) -> http.Request | None:
        return http.Request("GET", f"{service.url}/{record.offset}") if record.offset else None

    calls = http.Calls(request=request)
    consumer = kl.ParallelConsumer(stage.pipeline(calls, resource=calls.pool), ending_offsets="latest")
    with consumer.stream() as results:
        for result in results:
            if result.record.offset:
                assert result.value.text == f"answer /{result.record.offset}"
            else:
                assert result.value is None, "no request, and complete"
    assert consumer.snapshot().processed == RECORDS
    assert "/0" not in service.asked


def test_several_requests_of_a_record_are_sent_at_once_and_answered_in_their_order(
    stage: Stage, service: Service
) -> None:
    met: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def wait_for_the_other(request: web.Request) -> web.Response:
        number, part = request.path.strip("/").split("/")
        met[f"{number}/{part}"].set()
        await asyncio.wait_for(met[f"{number}/{'b' if part == 'a' else 'a'}"].wait(), 10)
        return web.Response(text=part)

    service.answer = lambda request, _: wait_for_the_other(request)
    said: list[list[str]] = []

    def request(record: kl.Record) -> list[http.Request]:
        number = int(record.value or b"")
        return [http.Request("GET", f"{service.url}/{number}/{part}") for part in ("a", "b")]

    run(stage, service, {"request": request, "on_response": lambda _, rs: said.append([r.text for r in rs])})
    assert said == [["a", "b"]] * RECORDS


def numbers(records: list[kl.Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def test_one_request_serves_a_batch_and_each_record_has_its_outcome(stage: Stage, service: Service) -> None:
    stage.create(1, "dead-" + stage.topic)

    async def judge(request: web.Request) -> web.Response:
        return web.json_response([number % 10 != 3 for number in await request.json()])

    service.answer = lambda request, _: judge(request)

    def on_response(records: list[kl.Record], response: http.Response) -> list[Any]:
        return [None if fine else ValueError("refused") for fine in response.json()]

    options = {
        "request": lambda records: http.Request("POST", f"{service.url}/batch", json=numbers(records)),
        "on_response": on_response,
    }
    snapshot = run(
        stage,
        service,
        options,
        batch=kl.Batch(RECORDS, min_size=RECORDS, linger_ms=500),
        on_exhausted=kl.DeadLetter("dead-" + stage.topic),
        retries=kl.Retries(max_attempts=1),
    )
    assert (snapshot.processed, snapshot.dead_lettered) == (RECORDS - 4, 4)
    assert sorted(int(one.value or b"") for one in stage.read("dead-" + stage.topic)) == [3, 13, 23, 33]
    assert service.asked["/batch"] < RECORDS / 2


def test_the_response_of_a_batch_is_the_value_of_each_of_its_records(stage: Stage, service: Service) -> None:
    calls = http.Calls(request=lambda records: http.Request("GET", f"{service.url}/{len(records)}"))
    pipeline = stage.pipeline(calls, resource=calls.pool, batch=kl.Batch(5))
    with kl.ParallelConsumer(pipeline, ending_offsets="latest").stream() as results:
        assert {result.value.text for result in results} == {"ok"}
    assert sum(int(path.strip("/")) * times for path, times in service.asked.items()) == RECORDS


@pytest.mark.parametrize("status", [429, 503])
def test_a_status_that_is_worth_it_is_tried_again(stage: Stage, service: Service, status: int) -> None:
    service.answer = lambda _, before: web.Response(status=status if before < 2 else 200)
    snapshot = run(stage, service)
    assert (snapshot.processed, snapshot.retried) == (RECORDS, 2 * RECORDS)


def test_retry_after_is_kept_to(stage: Stage, service: Service) -> None:
    """With a retry delay of minutes, only the header lets the run end."""
    service.answer = lambda _, before: web.Response(status=200 if before else 429, headers={"Retry-After": "0"})
    snapshot = run(stage, service, retries=kl.Retries(max_attempts=2, delay_ms=600_000, max_delay_ms=600_000))
    assert (snapshot.processed, snapshot.retried) == (RECORDS, RECORDS)


def test_retry_after_has_a_longest(stage: Stage, service: Service) -> None:
    service.answer = lambda _, before: web.Response(status=200 if before else 503, headers={"Retry-After": "86400"})
    assert run(stage, service, {"max_retry_after_ms": 5}).processed == RECORDS


def test_a_refused_record_is_not_tried_again_and_its_dead_letter_says_why(stage: Stage, service: Service) -> None:
    stage.create(1, "dead-" + stage.topic)
    service.answer = lambda request, _: web.Response(status=404 if request.path == "/7" else 200, text="no such flight")
    snapshot = run(stage, service, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    assert (snapshot.processed, snapshot.dead_lettered, snapshot.retried) == (RECORDS - 1, 1, 0)
    [letter] = stage.read("dead-" + stage.topic)
    said = dict(letter.headers)
    assert said["keylane.error.class"] == b"keylane.http.errors.RefusedError"
    assert said["keylane.error.text"] == f"GET {service.url}/7: status 404: no such flight".encode()


def test_which_statuses_are_tried_again_and_which_are_refused_are_options(stage: Stage, service: Service) -> None:
    service.answer = lambda _, before: web.Response(status=(409, 503)[min(before, 1)])
    statuses: list[int] = []
    options = {
        "retry_statuses": {409},
        "fatal_statuses": {410},
        "on_response": lambda _, response: statuses.append(response.status),
    }
    snapshot = run(stage, service, options)
    assert (snapshot.processed, snapshot.retried) == (RECORDS, RECORDS)
    assert statuses == [503] * RECORDS, "neither: a response like any"


def test_no_answer_in_time_is_a_failed_attempt(stage: Stage, service: Service) -> None:
    async def hang() -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    service.answer = lambda request, before: hang() if request.path == "/3" and not before else web.Response()
    snapshot = run(stage, service, {"timeout_ms": 300})
    assert (snapshot.processed, snapshot.retried) == (RECORDS, 1)
    service.answer = lambda *_: hang()
    stage.group += "-again"
    with pytest.raises(kl.HandlerError, match=r"HttpError: GET http://127.0.0.1:\d+/\d+: no answer within 50 ms"):
        run(stage, service, {"timeout_ms": 50}, retries=kl.Retries(max_attempts=1))


def test_no_connection_names_the_request_and_the_cause(stage: Stage, service: Service) -> None:
    closed = http.Calls(request=lambda _: http.Request("GET", "http://127.0.0.1:1/x?secret=1"))
    with pytest.raises(kl.HandlerError, match=r"HttpError: GET http://127.0.0.1:1/x: ClientConnectorError"):
        stage.run(closed, resource=closed.pool, retries=kl.Retries(max_attempts=1))


def test_a_body_that_is_too_long_is_a_failed_attempt(stage: Stage, service: Service) -> None:
    service.answer = lambda _, before: web.Response(body=b"x" * (11 if before == 0 else 10))
    snapshot = run(stage, service, {"max_response_bytes": 10})
    assert (snapshot.processed, snapshot.retried) == (RECORDS, RECORDS)


def test_the_pool_bounds_connections_when_asked_to(stage: Stage, service: Service) -> None:
    async def slow() -> web.Response:
        await asyncio.sleep(0.005)
        return web.Response()

    service.answer = lambda *_: slow()
    assert run(stage, service, {"max_connections": 3}, ordering="unordered").processed == RECORDS
    assert service.most == 3


def test_a_pipeline_without_the_pool_is_told(stage: Stage, service: Service) -> None:
    calls = http.Calls(request=lambda _: http.Request("GET", service.url))
    with pytest.raises(kl.HandlerError, match=r"give resource=calls\.pool .*; failed 1 attempt;"):
        stage.run(calls)


def test_what_is_no_request_is_told(stage: Stage, service: Service) -> None:
    with pytest.raises(kl.HandlerError, match=r"request returned a value of type str: return keylane\.http\.Request"):
        run(stage, service, {"request": lambda _: ["http://h"]})


def test_as_many_requests_are_in_flight_as_the_pipeline_allows(stage: Stage, service: Service) -> None:
    stage.create(1, "many-" + stage.topic)
    stage.fill(((b"%d" % number, 0) for number in range(300)), "many-" + stage.topic)
    together = asyncio.Event()

    async def meet() -> web.Response:
        if service.inside == 300:
            together.set()
        await asyncio.wait_for(together.wait(), 30)
        return web.Response()

    service.answer = lambda *_: meet()
    assert run(stage, service, topics=["many-" + stage.topic], max_concurrency=300).processed == 300
    assert service.most == 300
