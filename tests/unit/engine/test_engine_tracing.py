"""Spans by the SDK's in-memory exporter: parents, links, names, what fails, and what outputs carry on."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from keylane import Fatal, Output, Pipeline, Record, Retries, Skip, UsageError
from keylane.consumer.results import ResultQueue
from keylane.consumer.tracing import traced, wants_tracing
from keylane.options import Batch, Processes
from keylane.records import PlainMessage
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from keylane.consumer.outputs import Delivery

WAIT_S = 20.0
T0 = ("t", 0)
ONCE = Retries(max_attempts=1)
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = 0xB7AD6B7169203331
TRACEPARENT = b"00-%032x-%016x-01" % (TRACE, PARENT)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Of a provider that this test alone sees."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    return Pipeline(**{"kafka": kafka, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


def run(handler: Callable[..., Any], *headers: tuple[str, bytes], count: int = 1, **options: Any) -> list[Output]:
    """Records whose headers are these through a whole engine; what was produced."""
    log = FakeBroker([T0])
    for offset in range(count):
        log.logs[T0].append(PlainMessage("t", 0, offset, b"k", b"value", headers))
    with FakeEngine(pipeline(handler, **options), log, ending_offsets={T0: count}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    assert engine.loop.failure is None
    return engine.producer.sent


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    [span] = spans.get_finished_spans()
    return span


def carried_by(output: Output) -> tuple[int, int]:
    """Trace and span in an output's headers."""
    _, trace_id, span_id, _ = (dict(output.headers)["traceparent"] or b"").split(b"-")
    return int(trace_id, 16), int(span_id, 16)


async def do_nothing(_: Record) -> None:
    """A handler."""


def test_a_span_is_in_the_trace_of_its_record_and_named_by_the_conventions(spans: InMemorySpanExporter) -> None:
    run(lambda _: None, ("traceparent", TRACEPARENT))
    span = only(spans)
    assert (span.name, span.kind) == ("process t", SpanKind.CONSUMER)
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (TRACE, PARENT)
    assert [link.context.span_id for link in span.links] == [PARENT]
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "messaging.message.body.size": 5,
        "keylane.attempt": 1,
    }
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "keylane"


@pytest.mark.parametrize("headers", [(), (("traceparent", b"\xff"),), (("traceparent", b"nonsense"),)])
def test_without_a_trace_in_the_headers_one_begins(spans: InMemorySpanExporter, headers: Any) -> None:
    run(lambda _: None, *headers)
    assert only(spans).parent is None
    assert only(spans).links == ()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_span_is_current_in_the_handler_and_its_outputs_carry_it_on(
    spans: InMemorySpanExporter, is_async: bool
) -> None:
    def handler(_: Record) -> list[Output]:
        with trace.get_tracer("client").start_as_current_span("call"):
            return [Output("out", headers=[("h", b"1")]), Output("out", headers=[("Traceparent", b"mine")])]

    async def coroutine(record: Record) -> list[Output]:
        await asyncio.sleep(0)
        return handler(record)

    first, second = run(coroutine if is_async else handler, ("traceparent", TRACEPARENT))
    call, process = spans.get_finished_spans()
    assert (call.name, process.name) == ("call", "process t")
    assert process.context is not None
    assert call.parent is not None
    assert call.parent.span_id == process.context.span_id
    carried = b"00-%032x-%016x-01" % (TRACE, process.context.span_id)
    assert list(first.headers) == [("h", b"1"), ("traceparent", carried)]
    assert list(second.headers) == [("Traceparent", b"mine")], "the handler's own is left alone"


def test_tasks_that_run_side_by_side_keep_their_traces_apart(spans: InMemorySpanExporter) -> None:
    together = asyncio.Event()
    inside: list[int] = []

    async def handler(record: Record) -> Output:
        inside.append(record.offset)
        if len(inside) == 3:
            together.set()
        await asyncio.wait_for(together.wait(), WAIT_S)
        return Output("out", value=b"%d" % record.offset)

    sent = run(handler, count=3, ordering="unordered")
    by_offset = {(span.attributes or {})["messaging.kafka.offset"]: span.context for span in spans.get_finished_spans()}
    for output in sent:
        context = by_offset[int(output.value or b"")]
        assert context is not None
        assert carried_by(output) == (context.trace_id, context.span_id)


def test_what_fails_is_in_its_span_and_each_attempt_has_one(spans: InMemorySpanExporter) -> None:
    def handler(_: Record) -> None:
        raise Fatal("no use")

    run(handler, on_exhausted=Skip())
    span = only(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "Fatal"
    assert [event.name for event in span.events] == ["exception"]


def test_a_batch_has_one_span_with_a_link_to_each_trace(spans: InMemorySpanExporter) -> None:
    def handler(records: list[Record]) -> list[Any]:
        return [Output("out") if one.offset != 1 else ValueError("bad") for one in records]

    options: dict[str, Any] = {"batch": Batch(3, min_size=3, linger_ms=10_000), "retries": ONCE}
    sent = run(handler, ("traceparent", TRACEPARENT), count=3, ordering="unordered", on_exhausted=Skip(), **options)
    span = only(spans)
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [PARENT] * 3
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert [event.name for event in span.events] == ["exception"]
    assert span.context is not None
    assert [carried_by(one) for one in sent] == [(span.context.trace_id, span.context.span_id)] * 2


def test_outputs_carry_the_trace_on_under_a_stream_too(spans: InMemorySpanExporter) -> None:
    queue: ResultQueue[Delivery] = ResultQueue("handled", 10)
    log = FakeBroker([T0])
    log.append(T0, [(b"k", b"v")])
    with FakeEngine(pipeline(lambda _: Output("out")), log, ending_offsets={T0: 1}, stream=queue) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    context = only(spans).context
    assert context is not None
    assert carried_by(engine.producer.sent[0]) == (context.trace_id, context.span_id)


def test_a_worker_process_has_spans_of_its_own_provider_and_outputs_carry_them_on() -> None:
    """A provider does not travel: the resource sets one up where it is used."""

    @contextmanager
    def provider() -> Iterator[None]:
        trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
        yield

    options: dict[str, Any] = {"workers": Processes(), "max_concurrency": 1, "resource": provider, "tracing": "on"}
    [output] = run(lambda _: Output("out"), ("traceparent", TRACEPARENT), **options)
    trace_id, span_id = carried_by(output)
    assert trace_id == TRACE
    assert span_id != PARENT


# --- when ---


def test_auto_is_on_when_the_application_has_a_provider(spans: InMemorySpanExporter) -> None:
    assert wants_tracing(pipeline(do_nothing))
    assert not wants_tracing(pipeline(do_nothing, tracing="off"))


def test_auto_is_off_without_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not wants_tracing(pipeline(do_nothing))
    assert wants_tracing(pipeline(do_nothing, tracing="on"))


def test_on_without_opentelemetry_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'keylane\[tracing\]'"):
        wants_tracing(pipeline(do_nothing, tracing="on"))


def test_a_traced_handler_travels(spans: InMemorySpanExporter) -> None:
    made = traced(pipeline(lambda _: Output("out")))
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    record = Record(PlainMessage("t", 0, 0, None, None))

    class Given:
        attempt = 2

    assert dict(copy(record, Given()).headers)["traceparent"]
    assert (only(spans).attributes or {})["messaging.kafka.message.tombstone"] is True
    assert (only(spans).attributes or {})["keylane.attempt"] == 2


def test_a_handler_that_forwards_its_record_does_not_leave_its_own_span_out(spans: InMemorySpanExporter) -> None:
    [sent] = run(
        lambda record: Output("out", headers=record.headers),
        ("h", b"1"),
        ("traceparent", TRACEPARENT),
        ("baggage", b"tenant=acme"),
    )
    span = only(spans)
    assert span.context is not None
    assert carried_by(sent) == (TRACE, span.context.span_id)
    assert [name for name, _ in sent.headers] == ["h", "traceparent", "baggage"]


@pytest.mark.parametrize("is_async", [False, True])
def test_baggage_is_in_the_handler_and_goes_on_with_its_outputs(spans: InMemorySpanExporter, is_async: bool) -> None:
    def handler(record: Record) -> Output:
        return Output("out", value=str(baggage.get_baggage("tenant", None)).encode())

    async def coroutine(record: Record) -> Output:
        await asyncio.sleep(0)
        return handler(record)

    carried = [("traceparent", TRACEPARENT), ("baggage", b"tenant=acme")]
    [sent] = run(coroutine if is_async else handler, *carried)
    assert sent.value == b"acme"
    assert dict(sent.headers)["baggage"] == b"tenant=acme"
    assert baggage.get_all() == {}, "nothing stays behind"
    spans.clear()
    [sent] = run(coroutine if is_async else handler)
    assert sent.value == b"None"


def test_of_two_parents_the_first_one_counts(spans: InMemorySpanExporter) -> None:
    run(lambda _: None, ("traceparent", TRACEPARENT), ("traceparent", b"00-%032x-%016x-01" % (1, 2)))
    parent = only(spans).parent
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (TRACE, PARENT)
