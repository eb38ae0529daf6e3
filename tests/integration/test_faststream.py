"""FastStream's subscribers under keylane: on a broker, and as FastStream's own test client runs them."""

# Annotations of subscribers are read by FastStream, so they are no texts here.

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.filling import filling
from kit.stage import Stage

pytest.importorskip("faststream", reason="the extra faststream is not installed")

from faststream import AckPolicy, Context, Depends, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage, TestKafkaBroker
from faststream.confluent.schemas import TopicPartition
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage
from pydantic import BaseModel

from keylane.adapters.faststream import pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS, ORDERS = 6, 60
OPTIONS: dict[str, Any] = {"retries": kl.Retries(max_attempts=3, delay_ms=1), "offset_reset": "earliest"}


class Order(BaseModel):
    number: int


async def doubled(order: Order) -> int:
    await asyncio.sleep(0)
    return order.number * 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("faststream") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    made = Stage(broker.bootstrap, "".join(filter(str.isalnum, request.node.name)))
    made.create(2)
    return made


def application(stage: Stage) -> tuple[FastStream, KafkaBroker]:
    inner = KafkaBroker(stage.servers, logger=None)
    return FastStream(inner, logger=None), inner


def fill(stage: Stage, values: list[bytes]) -> None:
    with filling(stage.servers) as producer:
        for number, value in enumerate(values):
            key = number % KEYS
            producer.produce(kl.Output(stage.topic, b"%d" % key, value, partition=key % 2))


def run(made: kl.Pipeline) -> kl.Snapshot:
    with kl.ParallelConsumer(made, ending_offsets="latest") as consumer:
        consumer.run()
    return consumer.snapshot()


def test_a_subscriber_runs_as_it_is_in_order_by_key_with_retries_and_dead_letters(stage: Stage) -> None:
    stage.create(1, f"{stage.topic}-dead")
    stage.create(1, f"{stage.topic}-doubled")
    app, inner = application(stage)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    attempts: defaultdict[int, list[int]] = defaultdict(list)
    hooks: list[str] = []
    running = most = 0

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        hooks.append("lifespan")
        yield
        hooks.append("left")

    app.lifespan_context = around
    app.on_startup(lambda: hooks.append("started"))
    app.after_shutdown(lambda: hooks.append("stopped"))

    @inner.subscriber(stage.topic, group_id=stage.group, auto_offset_reset="earliest")
    @inner.publisher(f"{stage.topic}-doubled")
    async def double(
        order: Order,
        message: KafkaMessage,
        result: Annotated[int, Depends(doubled)],
        context: Annotated[kl.Context, Context("keylane")],
    ) -> Order:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        attempts[order.number].append(context.attempt)
        if order.number % 10 == 3 and context.attempt < 3:
            raise ConnectionError
        assert isinstance(message.raw_message, tuple) is False
        seen[order.number % KEYS].append(order.number)
        return Order(number=result)

    fill(stage, [json.dumps({"number": number}).encode() for number in range(ORDERS)])
    fill(stage, [b'{"number": "none"}'])
    snapshot = run(pipeline(app, kafka=stage.kafka, on_exhausted=kl.DeadLetter(f"{stage.topic}-dead"), **OPTIONS))
    assert seen == {key: list(range(key, ORDERS, KEYS)) for key in range(KEYS)}, "each key in order, through retries"
    assert most > 2, "keys side by side"
    assert {number: given for number, given in attempts.items() if len(given) > 1} == {
        number: [1, 2, 3] for number in range(3, ORDERS, 10)
    }
    assert snapshot.dead_lettered == 1
    (letter,) = stage.read(f"{stage.topic}-dead")
    assert letter.value == b'{"number": "none"}', "what pydantic refuses is a dead letter, as it was"
    outputs = [json.loads(one.value or b"")["number"] for one in stage.read(f"{stage.topic}-doubled")]
    assert sorted(outputs) == [number * 2 for number in range(ORDERS)]
    assert stage.all_is_committed()
    assert hooks == ["lifespan", "started", "stopped", "left"]


@pytest.mark.filterwarnings("ignore:AckPolicy.REJECT_ON_ERROR has the same effect")
@pytest.mark.parametrize("policy", list(AckPolicy), ids=lambda policy: policy.name)
@pytest.mark.parametrize("how", ["raised", "called"])
def test_a_nack_is_tried_again_and_all_else_is_complete_whatever_the_policy(
    stage: Stage, policy: AckPolicy, how: str
) -> None:
    _, inner = application(stage)
    said = {0: NackMessage, 1: AckMessage, 2: RejectMessage, 3: SkipMessage}
    runs: defaultdict[int, int] = defaultdict(int)

    @inner.subscriber(stage.topic, group_id=stage.group, auto_offset_reset="earliest", ack_policy=policy)
    async def handle(order: Order, message: KafkaMessage) -> None:
        runs[order.number] += 1
        if how == "raised" and runs[order.number] == 1 and order.number in said:
            raise said[order.number]
        if how == "called" and order.number == 0 and runs[0] == 1:
            await message.nack()
        if order.number == 1:
            await message.ack()

    fill(stage, [json.dumps({"number": number}).encode() for number in range(5)])
    run(pipeline(inner, kafka=stage.kafka, **OPTIONS))
    # Where FastStream acks a message before its function has it, a nack of the function's says nothing.
    again = 1 if how == "called" and policy is AckPolicy.ACK_FIRST else 2
    assert runs == {0: again, 1: 1, 2: 1, 3: 1, 4: 1}
    assert stage.all_is_committed()


def test_the_examples_run_and_faststreams_test_client_still_does(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker.bootstrap, "example")
    for topic in ("orders.placed", "orders.placed.scored", "orders.placed.dead"):
        stage.create(2, topic)
    for name in ("faststream_app", "faststream_pipeline"):
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
        file = tmp_path / f"{name}.py"
        file.write_text(file.read_text().replace("127.0.0.1:9092", broker.bootstrap))
    with filling(broker.bootstrap) as producer:
        for number in range(50):
            value = {"customer": f"customer-{number % 5}", "amount": number}
            producer.produce(kl.Output("orders.placed", b"%d" % (number % 5), json.dumps(value).encode()))
        producer.produce(kl.Output("orders.placed", b"6", b'{"customer": "nobody"}'))
    command = [sys.executable, "-m", "keylane", "run", "faststream_pipeline.py", "--available-now"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    scored = [json.loads(one.value or b"") for one in stage.read("orders.placed.scored")]
    assert sorted(one["score"] for one in scored) == [2.0 * number for number in range(50)]
    assert [one.value for one in stage.read("orders.placed.dead")] == [b'{"customer": "nobody"}']

    monkeypatch.syspath_prepend(tmp_path)
    import faststream_app  # type: ignore[import-not-found]
    import faststream_pipeline  # type: ignore[import-not-found]

    assert faststream_pipeline.scoring.topics == ["orders.placed"]

    async def tested() -> None:
        async with TestKafkaBroker(faststream_app.broker) as client:
            await client.publish({"customer": "a", "amount": 3}, "orders.placed")
            faststream_app.score.mock.assert_called_once_with({"customer": "a", "amount": 3})

    asyncio.run(tested())


async def nothing(body: bytes) -> None:
    """A subscriber."""


def nobody(inner: KafkaBroker) -> None:
    """A broker without subscribers."""


def one(inner: KafkaBroker) -> None:
    inner.subscriber("orders", group_id="g")(nothing)


def batches(inner: KafkaBroker) -> None:
    inner.subscriber("orders", group_id="g", batch=True)(nothing)


def by_hand(inner: KafkaBroker) -> None:
    inner.subscriber(partitions=[TopicPartition("orders", 0)], group_id="g")(nothing)


def without_a_group(inner: KafkaBroker) -> None:
    inner.subscriber("orders")(nothing)


def two_groups(inner: KafkaBroker) -> None:
    inner.subscriber("orders", group_id="g")(nothing)
    inner.subscriber("invoices", group_id="h")(nothing)


def two_of_a_topic(inner: KafkaBroker) -> None:
    inner.subscriber("orders", group_id="g")(nothing)
    inner.subscriber("orders", "invoices", group_id="g")(nothing)


@pytest.mark.parametrize(
    ("subscribe", "options", "says"),
    [
        (batches, {}, r"subscriber of orders: batch=True: .* leave it out"),
        (by_hand, {}, r"subscriber of orders-0: partitions are assigned by hand: give topics"),
        (without_a_group, {}, r"subscriber of orders: group_id is missing"),
        (two_groups, {}, r"subscribers of groups g, h: give group="),
        (two_groups, {"group": "i"}, r"group='i': no subscriber of it: there are g, h"),
        (two_of_a_topic, {}, r"subscriber of orders, invoices: 'orders' has another one in group 'g'"),
        (nobody, {}, r"group=None: no subscriber of it: there are none"),
        (one, {"delivery": "transactional"}, r"FastStream's producer is outside of keylane's transactions"),
    ],
)
def test_what_cannot_run_so_is_refused(subscribe: object, options: dict[str, object], says: str) -> None:
    inner = KafkaBroker("127.0.0.1:1", logger=None)
    subscribe(inner)  # type: ignore[operator]
    with pytest.raises(kl.UsageError, match=says):
        pipeline(inner, **options)  # type: ignore[arg-type]


def test_one_group_is_chosen_and_a_broker_of_other_clients_is_refused() -> None:
    inner = KafkaBroker("127.0.0.1:1", logger=None)
    two_groups(inner)
    assert pipeline(inner, group="h").topics == ["invoices"]
    with pytest.raises(kl.UsageError, match=r"brokers: none: keylane runs those of one"):
        pipeline(FastStream(logger=None))


def test_another_start_than_the_subscribers_is_refused_before_anything_runs(stage: Stage) -> None:
    _, inner = application(stage)
    ran = threading.Event()

    @inner.subscriber(stage.topic, group_id=stage.group, auto_offset_reset="earliest")
    async def handle(order: Order) -> None:
        ran.set()

    fill(stage, [b'{"number": 1}'])
    with pytest.raises(kl.KeylaneError, match=r"auto_offset_reset='earliest', and offset_reset='latest'"):
        run(pipeline(inner, kafka=stage.kafka))
    assert not ran.is_set()
