"""Orders enriched by an HTTP service: the automatic limit finds how much it takes, and what fails is a dead letter."""

import keylane as kl
from keylane.http import Calls, Request

servers, service = "127.0.0.1:9092", "http://127.0.0.1:8080"


def answered(row, response):
    if response.text == "CUSTOMER-7":
        raise kl.Fatal("this customer has no account")
    return (row.key, row.value, response.text)


spark = kl.spark.session("local[4]")
orders = spark.read.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
orders = orders.option("includeHeaders", "true").load()  # a dead letter keeps them
calls = Calls(request=lambda row: Request("GET", f"{service}/{row.key}"), on_response=answered)
step = kl.spark.parallel_map(
    calls,
    "customer string, item string, answer string",
    resource=calls.pool,  # one pool of connections a task
    max_concurrency="auto",
    rates=kl.Rates(records_per_s=1_000),  # of each task, whatever the service would take
    on_exhausted=kl.DeadLetter("orders.dead"),
    kafka={"bootstrap.servers": servers},
    key_deserializer=lambda data, _: data.decode(),
    value_deserializer=lambda data, _: data.decode(),
)
print(orders.transform(step).count(), "orders enriched")
done = step.snapshot()  # of all tasks
print(f"{done.processed} processed, {done.dead_lettered} dead, {done.failed} failed attempts")
