"""Prices orders that were written with a schema registry: the handler gets a dict, and a bad one is a dead letter."""

import keylane as kl


def price(record: kl.DecodedRecord) -> kl.Output:
    return kl.Output("orders.priced", key=record.raw_key, value=f"{record.value['amount'] * 100:.0f}")


orders = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "pricing"},
    topics=["orders.avro"],
    handler=price,
    value_deserializer=kl.schema.avro({"url": "http://127.0.0.1:8081"}),  # also json(…) and protobuf(…, Message)
    retries=kl.Retries(max_attempts=3, delay_ms=100),
    on_exhausted=kl.DeadLetter("orders.avro.dead"),
    offset_reset="earliest",
)
