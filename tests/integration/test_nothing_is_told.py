"""A mark in key, value, headers and settings is in nothing that keylane writes: logs at DEBUG, standard output and
error, tracebacks, progress, metrics, dead letters' headers of ours. What a user's own exception says is the user's.
"""

from __future__ import annotations

import json
import logging
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.metrics.prometheus import SnapshotCollector
from kit.filling import filling
from kit.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARK = "MARKER"
RAW = MARK.encode()
SPELLINGS = (MARK, RAW.hex(), MARK.lower())
SECRETS = {
    "sasl.username": "me",
    "sasl.password": MARK,
    "ssl.key.password": MARK,
    "ssl.keystore.password": MARK,
    "sasl.oauthbearer.client.secret": MARK,
    "sasl.oauthbearer.config": f"principal={MARK}",
    "debug": "conf,security,broker,cgrp,msg",
    "topic.metadata.propagation.max.ms": 100,
}
RECORDS = 6
ONCE = kl.Retries(max_attempts=2, delay_ms=0, max_delay_ms=0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("told") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    made = Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))
    for topic in (made.topic, "out-" + made.topic, "dead-" + made.topic):
        made.create(1, topic)
    with filling(made.servers) as producer:
        for number in range(RECORDS):
            mark = b"%s-%d" % (RAW, number)
            producer.produce(kl.Output(made.topic, mark, mark * 100, [("h", mark), (MARK, b"")]))
    return made


def _itself(value: kl.Snapshot) -> kl.Snapshot:
    return value


class Told:
    """Everything that is written while it is open."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        self._caplog, self._capfd = caplog, capfd
        caplog.set_level(logging.DEBUG)
        caplog.handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        self._texts: list[str] = []

    def add(self, *values: object) -> None:
        for value in values:
            self._texts += [repr(value), str(value)]
            if isinstance(value, BaseException):
                self._texts += traceback.format_exception(value)
            if isinstance(value, kl.Snapshot):
                self._texts.append(json.dumps(value.to_dict()))
                registry = CollectorRegistry()
                registry.register(SnapshotCollector(partial(_itself, value)))
                self._texts.append(generate_latest(registry).decode())

    def everything(self) -> str:
        return "\n".join([*self._texts, self._caplog.text, *self._capfd.readouterr()])


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Told:
    return Told(caplog, capfd)


def run(stage: Stage, told: Told, handler: Callable[..., Any], **options: Any) -> BaseException | None:
    """Run to the end, telling everything that a program could write of it."""
    pipeline = stage.pipeline(handler, kafka=stage.kafka | SECRETS, retries=ONCE, **options)
    told.add(pipeline, pipeline.kafka)
    failure: BaseException | None = None
    with kl.ParallelConsumer(pipeline, ending_offsets="latest", on_progress=told.add) as consumer:
        try:
            consumer.run()
        except kl.KeylaneError as error:
            failure = error
            told.add(error)
        told.add(consumer, consumer.snapshot(), consumer.liveness())
    return failure


# --- handlers: what they do with a record that is all marks ---


def failing(record: kl.Record) -> Any:
    raise ValueError(f"cannot do {record!r}")


async def failing_async(record: kl.Record) -> Any:
    raise ValueError(f"cannot do {record!r}")


def wrong(record: kl.Record) -> Any:
    return {record.value: record.key}


async def wrong_async(record: kl.Record) -> Any:
    return [record.value]


def wrong_output(record: kl.Record) -> Any:
    return kl.Output("out", value={"v": record.value}, headers={"h": record.key})  # type: ignore[arg-type]


def batch_of_wrong(records: list[kl.Record]) -> Any:
    return [record.value for record in records]


def undecodable(data: bytes | None, field: Any) -> Any:
    raise ValueError(f"no {field.field} of {len(data or b'')} bytes")


@pytest.mark.parametrize(
    ("handler", "options", "says"),
    [
        (failing, {}, "ValueError: cannot do Record("),
        (failing_async, {}, "ValueError: cannot do Record("),
        (failing, {"workers": kl.Processes(1)}, "ValueError: cannot do Record("),
        (wrong, {}, "the handler returned a value of type dict"),
        (wrong_async, {}, "the handler returned a list with a value of type bytes"),
        (wrong, {"workers": kl.Processes(1)}, "the handler returned a value of type dict"),
        (wrong_output, {}, "Output.value for topic 'out' is a value of type dict"),
        (batch_of_wrong, {"batch": kl.Batch(3)}, "the handler returned a value of type bytes"),
        (print, {"value_deserializer": undecodable}, "ValueError: no value of 800 bytes"),
        (print, {"key_deserializer": undecodable, "workers": kl.Processes()}, "ValueError: no key of 8 bytes"),
        (print, {"not_before": lambda record: record.value}, "not_before returned a value of type bytes"),
        (lambda one: kl.Output("nowhere", one.key, one.value), {}, "topic 'nowhere', which an output is for"),
        (lambda one: kl.Output("out", one.key, bytes(2_000_000)), {}, "too large for topic 'out'"),
    ],
)
@pytest.mark.parametrize("end", ["halt", pytest.param("skip", marks=pytest.mark.soak), "dead letter"])
def test_no_payload_and_no_secret_is_told_by_a_pipeline(
    stage: Stage, told: Told, handler: Callable[..., Any], options: dict[str, Any], says: str, end: str
) -> None:
    dead = "dead-" + stage.topic
    rules = {"halt": kl.Halt(), "skip": kl.Skip(), "dead letter": kl.DeadLetter(dead)}
    stage.admin.create_topics({"out": 1})
    failure = run(stage, told, handler, on_exhausted=rules[end], **options)
    assert (failure is not None) == (end == "halt")
    everything = told.everything()
    is_users = says.startswith("ValueError: ") and end != "halt"  # then its class alone is told
    assert (says.partition(":")[0] if is_users else says) in everything
    assert [one for one in SPELLINGS if one in everything] == [], lines_with(everything)
    if end == "dead letter":
        letters = stage.read(dead)
        assert len(letters) == RECORDS
        ours = [(name, value) for one in letters for name, value in one.headers if name.startswith("keylane.")]
        assert len(ours) == 7 * RECORDS
        assert [one for one in ours if RAW in (one[1] or b"")] == []


def lines_with(text: str) -> list[str]:
    return [line[:400] for line in text.splitlines() if any(one in line for one in SPELLINGS)]


def test_no_payload_and_no_secret_is_told_by_the_command_line(stage: Stage, told: Told, tmp_path: Path) -> None:
    kafka = stage.kafka | {name: value for name, value in SECRETS.items() if name != "debug"}
    program = f"""
import keylane as kl

async def handle(record):
    if record.offset == 2:
        return {{"v": record.value}}

pipeline = kl.Pipeline(
    kafka={kafka!r}, topics=[{stage.topic!r}], handler=handle, offset_reset="earliest", {{more}}
)
"""
    file = tmp_path / "mine.py"
    for more, code in (
        ("", 1),
        ("on_exhausted=kl.Skip()", 0),
        ("store='postgresql://me:MARKER@h/d'", 2),
        ("delivery='exactly_once', store='postgresql://me:MARKER@h/d?no=1'", 2),
    ):
        file.write_text(program.replace("{more}", more))
        assert main(["-v", "run", str(file), "--available-now", "--json"]) == code, more
    file.write_text(program.replace("{more}", "").replace("sasl.password", "sasl.pasword"))
    assert main(["run", str(file), "--available-now"]) == 2
    config = tmp_path / "client.properties"
    for line in ("sasl.jaas.config=MARKER", "ssl.keystore.password=MARKER", "sasl.password MARKER", "sasl.pass=MARKER"):
        config.write_text(f"bootstrap.servers={stage.servers}\n{line}\n")
        assert main(["groups", "list", "--command-config", str(config)]) == 2, line
    for command in ("list", "describe"):
        arguments = [] if command == "list" else [stage.group]
        assert main(["groups", command, *arguments, "--bootstrap", stage.servers, "--json"]) == 0
    everything = told.everything()
    assert "the handler returned a value of type dict" in everything
    assert "did you mean sasl.password?" in everything
    assert [one for one in SPELLINGS if one in everything] == [], lines_with(everything)
