"""`keylane.http` against a real server: statuses, Retry-After, timeouts, several requests, streams, and a full pool."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Self

import pytest
from aiohttp import web

import keylane as kl
from keylane import http
from keylane.broker.process import BrokerProcess
from keylane.http import connecting
from kit.http_service import Service
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Certificates

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
    again = (2 * RECORDS, 0) if status == 503 else (0, 2 * RECORDS)
    assert (snapshot.processed, snapshot.retried, snapshot.throttled) == (RECORDS, *again)


def test_retry_after_is_kept_to(stage: Stage, service: Service) -> None:
    """With a retry delay of minutes, only the header lets the run end."""
    service.answer = lambda _, before: web.Response(status=200 if before else 503, headers={"Retry-After": "0"})
    snapshot = run(stage, service, retries=kl.Retries(max_attempts=2, delay_ms=600_000, max_delay_ms=600_000))
    assert (snapshot.processed, snapshot.retried) == (RECORDS, RECORDS)


def test_a_service_that_throttles_uses_up_no_attempt(stage: Stage, service: Service) -> None:
    """With one attempt, and a retry delay of minutes, all are through."""
    service.answer = lambda _, before: web.Response(status=200 if before > 2 else 429, headers={"retry-after-ms": "5"})
    snapshot = run(stage, service, retries=kl.Retries(max_attempts=1, delay_ms=600_000, max_delay_ms=600_000))
    assert (snapshot.processed, snapshot.throttled, snapshot.failed) == (RECORDS, 3 * RECORDS, 0)


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
    snapshot = run(stage, service, {"timeout_ms": 300}, retries=kl.Retries(max_attempts=None, delay_ms=1))
    assert snapshot.processed == RECORDS
    assert snapshot.retried >= 1
    assert service.asked["/3"] >= 2  # others come late, too, where the machine is busy
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


@pytest.fixture
def elsewhere() -> Iterator[Service]:
    with Service() as made:
        yield made


REDIRECTS = (301, 302, 303, 307, 308)


async def _echo(request: web.Request) -> web.Response:
    key = request.headers.get("x-api-key", "no key")
    return web.Response(text=f"{request.method} {(await request.read()).decode()} {key}")


def _post_to_redirects(service: Service) -> Callable[[kl.Record], http.Request]:
    """Record n is posted to where it is redirected by the n-th status."""

    def request(record: kl.Record) -> http.Request:
        number = int(record.value or b"") % len(REDIRECTS)
        headers = {"x-api-key": "secret"}
        return http.Request("POST", f"{service.url}/{REDIRECTS[number]}", headers=headers, body=record.value)

    return request


def test_a_redirected_post_is_refused_and_nobody_else_hears_of_it(
    stage: Stage, service: Service, elsewhere: Service
) -> None:
    stage.create(1, "dead-" + stage.topic)
    service.answer = lambda request, _: web.Response(
        status=int(request.path.strip("/")), headers={"location": elsewhere.url}
    )
    options = {"request": _post_to_redirects(service)}
    snapshot = run(stage, service, options, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    assert (snapshot.dead_lettered, snapshot.retried) == (RECORDS, 0)
    assert not elsewhere.asked


def test_redirects_that_are_followed_keep_the_method_and_give_no_header_away(
    stage: Stage, service: Service, elsewhere: Service
) -> None:
    stage.create(1, "dead-" + stage.topic)
    service.answer = lambda request, _: web.Response(
        status=int(request.path.strip("/")), headers={"location": elsewhere.url + "/hook"}
    )
    elsewhere.answer = lambda request, _: _echo(request)
    answers: list[str] = []
    options = {
        "request": _post_to_redirects(service),
        "on_response": lambda _, response: answers.append(response.text),
        "max_redirects": 1,
    }
    snapshot = run(stage, service, options, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    kept = [number for number in range(RECORDS) if REDIRECTS[number % 5] in {307, 308}]
    assert sorted(answers) == sorted(f"POST {number} no key" for number in kept)
    assert snapshot.dead_lettered == RECORDS - len(kept)


def test_redirects_that_go_on_for_ever_end(stage: Stage, service: Service) -> None:
    service.answer = lambda *_: web.Response(status=307, headers={"location": service.url})
    options = {"request": lambda _: http.Request("GET", service.url), "max_redirects": 3}
    snapshot = run(stage, service, options, on_exhausted=kl.Skip())
    assert snapshot.skipped == RECORDS
    assert service.asked["/"] == 4 * RECORDS


def test_waiting_for_the_pool_is_no_time_of_the_service(stage: Stage, service: Service) -> None:
    """All but two requests wait for longer than `timeout_ms`."""

    async def slow() -> web.Response:
        await asyncio.sleep(0.05)
        return web.Response()

    service.answer = lambda *_: slow()
    options = {"max_connections_per_host": 2, "timeout_ms": 400}
    snapshot = run(stage, service, options, ordering="unordered", max_concurrency=RECORDS)
    assert (snapshot.processed, snapshot.failed) == (RECORDS, 0)


@pytest.mark.parametrize("requests", [1, 2])
def test_what_waits_for_the_pool_is_in_the_figures_and_says_so(stage: Stage, service: Service, requests: int) -> None:
    gate = threading.Event()

    async def hang() -> web.Response:
        await asyncio.to_thread(gate.wait, 60)
        return web.Response()

    service.answer = lambda *_: hang()
    one = http.Request("GET", service.url)
    calls = http.Calls(request=lambda _: one if requests == 1 else [one] * requests, max_connections_per_host=4)
    pipeline = stage.pipeline(calls, resource=calls.pool, ordering="unordered", max_concurrency=RECORDS)
    consumer = kl.ParallelConsumer(pipeline, ending_offsets="latest")
    runs = threading.Thread(target=consumer.run)
    runs.start()
    waiting = RECORDS - 4 // requests
    try:
        until(lambda: consumer.snapshot().waiting_for_pool == waiting, lambda: str(consumer.snapshot()), 20)
        assert Counter(one.why for one in consumer.work().in_hand) == {"pool": waiting, "running": RECORDS - waiting}
    finally:
        gate.set()
        runs.join()
    assert (consumer.snapshot().processed, consumer.snapshot().waiting_for_pool) == (RECORDS, 0)


def test_a_call_knows_nothing_of_the_answers_before_it(stage: Stage, service: Service) -> None:
    seen: list[str | None] = []

    def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("cookie"))
        response = web.Response()
        response.set_cookie("session", "of another record")
        return response

    service.answer = lambda request, _: answer(request)
    run(stage, service, ordering="partition")
    assert seen == [None] * RECORDS


class Talker:
    """A server that says more than it was asked: after each answer one that nobody has asked for."""

    def __init__(self) -> None:
        self.has_spoken = threading.Semaphore(0)
        """Once for each answer that nobody has asked for."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))
                await writer.drain()
                await asyncio.sleep(0)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale")
                await writer.drain()
                self.has_spoken.release()
        writer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def test_an_answer_that_nobody_has_asked_for_is_nobodys(stage: Stage) -> None:
    is_first = True

    async def request(record: kl.Record) -> http.Request:
        nonlocal is_first
        assert is_first or talker.has_spoken.acquire(timeout=10)
        is_first = False
        for _ in range(5):  # the loop reads what has arrived on the connection that is kept
            await asyncio.sleep(0)
        return http.Request("GET", f"{talker.url}/{record.partition}/{record.offset}")

    def on_response(record: kl.Record, response: http.Response) -> None:
        assert response.text == f"/{record.partition}/{record.offset}"

    with Talker() as talker:
        calls = http.Calls(request=request, on_response=on_response)
        snapshot = stage.run(calls, resource=calls.pool, max_concurrency=1, retries=kl.Retries(max_attempts=1))
    assert snapshot.processed == RECORDS


def test_addresses_of_ones_own_networks_are_refused_whatever_leads_there(stage: Stage, service: Service) -> None:
    stage.create(1, "dead-" + stage.topic)
    port = service.url.rpartition(":")[2]
    hosts = ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"]
    calls = http.Calls(
        request=lambda record: http.Request("GET", f"http://{hosts[int(record.value or b'') % 3]}:{port}/"),
        refuse_private_addresses=True,
    )
    snapshot = stage.run(calls, resource=calls.pool, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    assert not service.asked
    assert (snapshot.dead_lettered, snapshot.retried) == (RECORDS, 0)
    texts = {dict(letter.headers)["keylane.error.text"] for letter in stage.read("dead-" + stage.topic)}
    assert all(b"is in a network of one's own (refuse_private_addresses)" in (text or b"") for text in texts)


def test_a_failure_in_the_log_holds_neither_the_path_nor_the_answer(
    stage: Stage, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    stage.create(1, "dead-" + stage.topic)
    service.answer = lambda *_: web.Response(status=422, text="card 4711 is invalid")
    options = {"request": lambda _: http.Request("POST", f"{service.url}/services/s3cret")}
    with caplog.at_level("WARNING", "keylane"):
        run(stage, service, options, on_exhausted=kl.DeadLetter("dead-" + stage.topic))
    assert f"POST {service.url}: status 422" in caplog.text
    assert "s3cret" not in caplog.text
    assert "4711" not in caplog.text
    letter, *_ = stage.read("dead-" + stage.topic)
    said = f"POST {service.url}/services/s3cret: status 422: card 4711 is invalid"
    assert dict(letter.headers)["keylane.error.text"] == said.encode()


def test_calls_go_through_a_proxy(stage: Stage, service: Service) -> None:
    calls = http.Calls(request=lambda _: http.Request("GET", "http://nowhere.invalid/path"), proxy=service.url)
    assert stage.run(calls, resource=calls.pool).processed == RECORDS
    assert sum(service.asked.values()) == RECORDS, "the proxy was asked, and no name was looked up here"


def test_a_client_shows_its_certificate_and_trusts_its_own_authority(stage: Stage, certificates: Certificates) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.authority)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED
    ours = {
        "ca_file": certificates.authority,
        "certificate_file": certificates.certificate,
        "key_file": certificates.key,
    }
    with Service(context) as service:
        assert run(stage, service, ours).processed == RECORDS
        stage.group += "-stranger"
        with pytest.raises(kl.HandlerError, match="ClientConnectorCertificateError"):
            run(stage, service, retries=kl.Retries(max_attempts=1))


def test_names_that_do_not_resolve_hold_up_nobody() -> None:
    """The name server is silent; no thread waits for it, and each look-up has its own end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        done: list[str] = []

        async def ask() -> list[object]:
            resolver = connecting.Resolver(0.5, nameservers=["127.0.0.1"], udp_port=port, tcp_port=port)
            names = [f"hook.customer{number}.example.com" for number in range(60)]
            lookups = [asyncio.ensure_future(resolver.resolve(name)) for name in names]
            await asyncio.to_thread(done.append, "the loop's own threads are free")
            assert await resolver.resolve("localhost")
            done.append("a name that is known")
            failed = await asyncio.gather(*lookups, return_exceptions=True)
            await resolver.close()
            return list(failed)

        failed = asyncio.run(ask())
    assert len(done) == 2
    assert all(isinstance(one, OSError) for one in failed)
