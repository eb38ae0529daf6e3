"""Puts each document into a bucket, and its name into a topic; one that comes again overwrites itself."""

from contextlib import contextmanager

from pyarrow.fs import S3FileSystem

import keylane as kl

BUCKET = "documents"


@contextmanager
def storage():
    yield S3FileSystem(
        endpoint_override="127.0.0.1:9000", scheme="http", region="us-east-1", access_key="user", secret_key="secret"
    )


def put(record: kl.Record, context: kl.Context) -> kl.Output:
    name = f"{BUCKET}/{record.topic}/{record.partition}/{record.offset:020}"
    with context.resource.open_output_stream(name) as stream:
        stream.write(record.value or b"")
    return kl.Output("documents.stored", key=record.key, value=name)


documents = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "storing"},
    topics=["documents"],
    handler=put,
    resource=storage,
    workers=kl.Threads(32),
    ordering="unordered",  # names tell the order
    on_exhausted=kl.DeadLetter("documents.dead"),
    offset_reset="earliest",
)
