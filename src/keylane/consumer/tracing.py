"""OpenTelemetry spans: one of kind CONSUMER around each call of the handler, and its trace carried on by the outputs.

The idea: tracing is a handler around the handler, so the rest of the engine knows nothing of it. What the producer
wrote into the record's headers (W3C `traceparent`, or whatever the global propagator reads) is the span's parent and
link; inside the handler the span is current, so that clients which are instrumented go on with the trace. Names follow
OpenTelemetry's semantic conventions for messaging (1.27) and Kafka. Needs the extra `tracing`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.options import is_coroutine_function, takes_context
from keylane.records import Output, Returned, readable_headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Link, Span, Tracer

    from keylane.flow.items import Carried
    from keylane.flow.outcomes import Outcome
    from keylane.options import Flow
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

    Handler = Callable[..., Any]
    SpanOf = Callable[[Any, Context], AbstractContextManager[Span]]

OPERATION = "process"


def wants_tracing(options: Flow) -> bool:
    """By the option `tracing`; "auto" is on when the application has set a tracer provider of its own.

    Raises `UsageError` for "on" without opentelemetry-api.
    """
    if options.tracing == "on":
        try:
            import opentelemetry.trace  # noqa: F401
        except ImportError:
            raise UsageError("tracing='on' needs opentelemetry-api: run `pip install 'keylane[tracing]'`") from None
        return True
    trace = sys.modules.get("opentelemetry.trace")
    if options.tracing == "off" or trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def traced(pipeline: Pipeline) -> Handler:
    """The pipeline's handler with a span around each call."""
    return around(pipeline.handler, spans(pipeline.group_id, of_batches=pipeline.batch is not None), _carried_on)


def spans(group: str | None, *, of_batches: bool) -> SpanOf:
    """Of records, or of batches of them, that a group reads, if one does."""
    return partial(_batch_span if of_batches else _record_span, _LazyTracer(), group)


def around(handler: Handler, span_of: SpanOf, seen: Handler) -> Handler:
    """The handler with a span around each call; `seen` gets the span, what the handler got and what it returned, and
    says what is returned."""
    takes = takes_context(handler)

    def call(what: Carried, context: Context) -> Outcome:
        with span_of(what, context) as span:
            return seen(span, what, handler(what, context) if takes else handler(what))

    async def call_async(what: Carried, context: Context) -> Outcome:
        with span_of(what, context) as span:
            return seen(span, what, await (handler(what, context) if takes else handler(what)))

    return call_async if is_coroutine_function(handler) else call


class _LazyTracer:
    """keylane's tracer of the process that it is used in: a tracer itself does not travel."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def __reduce__(self) -> tuple[type[_LazyTracer], tuple[()]]:
        return _LazyTracer, ()

    def __call__(self) -> Tracer:
        if self._tracer is None:
            from opentelemetry import trace

            self._tracer = trace.get_tracer("keylane", version("keylane"))
        return self._tracer


def _record_span(
    tracer: _LazyTracer, group: str | None, record: Record, context: Context
) -> AbstractContextManager[Span]:
    attributes = _attributes(group, record.topic, context) | {
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    key: Any = record.key
    value: Any = record.value
    if key is not None:
        text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
        attributes["messaging.kafka.message.key"] = text
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    elif isinstance(value, bytes):
        attributes["messaging.message.body.size"] = len(value)
    parent = _extracted(record)
    return _span(tracer, record.topic, attributes, _links([parent]), parent)


def _batch_span(
    tracer: _LazyTracer, group: str | None, records: Sequence[Record], context: Context
) -> AbstractContextManager[Span]:
    """Of a batch: linked to every record's trace, in none of them."""
    topics = sorted({record.topic for record in records})
    attributes = _attributes(group, ",".join(topics), context) | {"messaging.batch.message_count": len(records)}
    return _span(tracer, ",".join(topics), attributes, _links(map(_extracted, records)), None)


def _attributes(group: str | None, destination: str, context: Context) -> dict[str, Any]:
    of_group = {} if group is None else {"messaging.consumer.group.name": group}
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": OPERATION,
        "messaging.operation.type": OPERATION,
        "messaging.destination.name": destination,
        "keylane.attempt": context.attempt,
    } | of_group


@contextmanager
def _span(
    tracer: _LazyTracer, destination: str, attributes: dict[str, Any], links: list[Link], parent: TraceContext | None
) -> Iterator[Span]:
    """A span inside its parent's context, which is current too: its baggage is the handler's."""
    from opentelemetry import context as current
    from opentelemetry.trace import SpanKind

    token = current.attach(parent or current.Context())
    try:
        with tracer().start_as_current_span(
            f"{OPERATION} {destination}", None, SpanKind.CONSUMER, attributes, links
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise
    finally:
        current.detach(token)


def _extracted(record: Record) -> TraceContext:
    """The context that the record's producer wrote into its headers. Of a name that came twice the first one counts, as
    for OpenTelemetry's own clients."""
    from opentelemetry import propagate
    from opentelemetry.context import Context as Empty

    carrier: dict[str, str] = {}
    for name, value in readable_headers_of(record.message) or ():
        carrier.setdefault(name.lower(), (value or b"").decode(errors="replace"))
    return propagate.extract(carrier, Empty())


def _links(contexts: Iterable[TraceContext]) -> list[Link]:
    from opentelemetry import trace

    spans = (trace.get_current_span(context).get_span_context() for context in contexts)
    return [trace.Link(span) for span in spans if span.is_valid]


def noted(span: Span, _what: Carried, result: Outcome) -> Outcome:
    """What the handler returned, as it is; what failed of a batch is in the span."""
    if isinstance(result, list | tuple):
        for one in result:
            if isinstance(one, BaseException):
                span.record_exception(one)
    return result


def _carried_on(span: Span, what: Carried, result: Outcome) -> Outcome:
    """What the handler returned, its outputs with the span's context in their headers."""
    from opentelemetry import propagate

    noted(span, what, result)
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return result
    records: Sequence[Record] = what if isinstance(what, list) else [what]
    came = {(name.lower(), value) for record in records for name, value in record.headers if name.lower() in carrier}
    return _with_context(result, carrier, came)


def _with_context(result: Outcome, carrier: dict[str, str], came: set[tuple[str, bytes | None]]) -> Outcome:
    """Outputs with the current context in their headers, unless the handler has put another one there. What the record
    came with and the handler passed on is not the handler's: the trace would go on without this span."""
    if isinstance(result, list | tuple):
        return [_with_context(one, carrier, came) for one in result]
    if isinstance(result, Returned):
        return Returned(result.value, [_with_context(one, carrier, came) for one in result.outputs], result.record)
    if not isinstance(result, Output):
        return result
    headers = [(name, value) for name, value in result.headers if (name.lower(), value) not in came]
    if {name.lower() for name, _ in headers} & carrier.keys():
        return replace(result, headers=headers)
    return replace(result, headers=[*headers, *((name, value.encode()) for name, value in carrier.items())])
