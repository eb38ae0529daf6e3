"""Spans of the application's own tracer provider: one a call of the handler, in the trace of the record's producer."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from orders import score

import keylane as kl

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: f"{span.name}\n")))
trace.set_tracer_provider(provider)

pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "tracing"},
    topics=["orders"],
    handler=score,
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
provider.shutdown()
