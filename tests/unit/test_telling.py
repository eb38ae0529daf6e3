"""What reprs and errors show of settings, records and wrong names: names, types and sizes; no secret, no payload."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import pytest

import keylane as kl
from keylane.broker.config import parse_config, parse_properties
from keylane.broker.scram import credential_of
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.delivery import PostgresStore
from keylane.flow.outcomes import Failure
from keylane.http.messages import Request, Response
from keylane.kafka.java_settings import translate
from keylane.kafka.login import login_of
from keylane.kafka.producer import check_producer
from keylane.kafka.schema import RegistryDeserializer
from keylane.records import DecodedRecord, PlainMessage, Record, Result
from keylane.telling import ClientSettings, did_you_mean, is_secret

MARK = "MARKER"
RAW = MARK.encode()

SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "sasl.jaas.config",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "basic.auth.user.info",
)


def pipeline(**more: Any) -> kl.Pipeline:
    kafka = {"bootstrap.servers": "a:1", "group.id": "g"} | dict.fromkeys(SECRETS, MARK)
    return kl.Pipeline(**{"kafka": kafka, "topics": ["t"], "handler": print, **more})


def test_which_settings_are_secrets() -> None:
    assert [name for name in SECRETS if not is_secret(name)] == []
    shown = ("bootstrap.servers", "ssl.key.location", "ssl.ca.location", "sasl.username", "sasl.mechanisms", "acks")
    assert [name for name in shown if is_secret(name)] == []


def test_a_pipelines_repr_shows_its_settings_without_secrets() -> None:
    made = pipeline(delivery=kl.ExactlyOnce(f"postgresql://user:{MARK}@host/db"))
    for one in (made, made.kafka, copy.copy(made.kafka), pickle.loads(pickle.dumps(made.kafka))):
        assert MARK not in f"{one!r} {one}"
        assert "'bootstrap.servers': 'a:1'" in repr(one)
        assert "'sasl.password': (hidden)" in repr(one)
    assert made.kafka["sasl.password"] == MARK


def message() -> PlainMessage:
    return PlainMessage("t", 1, 2, RAW, RAW, ((MARK, RAW),))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Record(message()), "Record(t-1@2)"),
        (DecodedRecord.of(Record(message()), MARK, MARK), "Record(t-1@2)"),
        (message(), "PlainMessage(topic_='t', partition_=1, offset_=2, timestamp_=(0, -1), leader_epoch_=None)"),
        (kl.Output("t", RAW, RAW, [(MARK, RAW)]), "Output('t', key=<6 long>, value=<6 long>, headers=<1>)"),
        (kl.Output("t", partition=3, timestamp_ms=4), "Output('t', partition=3, timestamp_ms=4)"),
        (Result(Record(message()), MARK), "Result(record=Record(t-1@2), produced=())"),
        (Request("GET", f"http://u:{MARK}@h/p?q={MARK}", {"a": MARK}, body=RAW), "Request(GET http://h/p)"),
        (
            Response(Request("GET", "http://h/p"), 200, {"a": MARK}, RAW),
            "Response(GET http://h/p: status 200, 6 bytes)",
        ),
        (PostgresStore(f"postgresql://u:{MARK}@h/d"), "connections=10"),
        (credential_of("SCRAM-SHA-256", MARK, RAW, 4096), "Credential(iterations=4096)"),
        (
            login_of(
                {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "u",
                    "sasl.password": MARK,
                }
            ),
            "Login(PLAIN, 'u')",
        ),
        (parse_config({"ssl.key.password": MARK}), "num_partitions=1"),
        (ClientSettings({"sasl.password": MARK}), "{'sasl.password': (hidden)}"),
    ],
)
def test_reprs_show_names_and_sizes(value: object, shown: str) -> None:
    assert shown in repr(value)
    assert MARK not in f"{value!r} {value}"
    assert RAW.hex() not in repr(value)


@pytest.mark.parametrize("wrong", [MARK, RAW, {MARK: RAW}, [MARK], (RAW,), {MARK}, Record(message())])
def test_a_wrong_return_value_is_named_by_its_type(wrong: Any) -> None:
    for outcome in (outcome_of(wrong), *outcomes_of(wrong, 5), *outcomes_of([wrong], 1)):
        assert isinstance(outcome, Failure)
        assert MARK not in f"{outcome!r} {outcome.error}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: kl.Pipeline(kafka=[("sasl.password", MARK)], topics=["t"], handler=print),  # type: ignore[arg-type]
        lambda: pipeline(delivery=kl.ExactlyOnce(f"postgresql://user:{MARK}@host/db"), workers=kl.Processes()),
        lambda: pipeline(delivery=kl.ExactlyOnce({"password": MARK})),
        lambda: pipeline(on_commit=5),
        lambda: translate({"ssl.keystore.password": MARK}),
        lambda: translate({"ssl.truststore.password": MARK}),
        lambda: translate({"sasl.jaas.config": MARK}),
        lambda: translate({"sasl.jaas.config": f'org.apache.PlainLoginModule required password="{MARK}";'}),
        lambda: parse_properties(f"a=b\n{MARK}\n", "client.properties"),
        lambda: parse_config({"ssl.key.passwd": MARK}),
        lambda: RegistryDeserializer("avro", {"basic.auth.user.info": MARK}, None, {}),
        lambda: check_producer({"bootstrap.servers": "a:1", "sasl.pasword": MARK}),
        lambda: check_producer({"bootstrap.servers": "a:1", "security.protocol": "ssl", "ssl.key.pem": MARK}),
        lambda: kl.spark.start(MARK, None),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused_shows_no_secret(make: Any) -> None:
    with pytest.raises(kl.UsageError) as raised:
        make()
    assert MARK not in f"{raised.value!r} {raised.value}"
    said = [str(one) for one in _chain(raised.value)]
    assert [one for one in said if MARK in one] == []


def _chain(error: BaseException | None) -> list[BaseException]:
    """All errors that a traceback shows."""
    if error is None:
        return []
    return [error, *_chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__))]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: pipeline(concurency=5), "Pipeline has no option 'concurency': did you mean max_concurrency?"),
        (lambda: pipeline(orderig="key"), "Pipeline has no option 'orderig': did you mean ordering?"),
        (lambda: kl.Retries(attempts=5), "Retries has no option 'attempts': did you mean max_attempts?"),  # type: ignore[call-arg]
        (lambda: kl.Rates(per_sec=5), "Rates has no option 'per_sec': did you mean"),  # type: ignore[call-arg]
        (lambda: kl.ParallelConsumer(pipeline(), client="me"), "no option 'client': did you mean client_id?"),  # type: ignore[call-arg]
        (lambda: kl.spark.start(pipeline(), None, lane=3), "start has no option 'lane': did you mean lanes?"),  # type: ignore
        (
            lambda: kl.spark.parallel_map(print, "a int", max_concurency=3),  # type: ignore[call-arg]
            "parallel_map has no option 'max_concurency': did you mean max_concurrency?",
        ),
        (
            lambda: check_producer({"bootstrap.servers": "a:1", "sasl.pasword": "x"}),
            "did you mean sasl.password?",
        ),
        (
            lambda: check_producer({"bootstrap.servers": "a:1", "compresion.type": "zstd"}),
            "did you mean compression.type?",
        ),
        (
            lambda: kl.Pipeline(kafka={"bootstrap.server": "a:1", "group.id": "g"}, topics=["t"], handler=print),
            "kafka['bootstrap.servers'] is missing; there is 'bootstrap.server' in their place",
        ),
    ],
)
def test_an_unknown_name_says_which_is_meant(make: Any, text: str) -> None:
    with pytest.raises(kl.UsageError) as raised:
        make()
    assert text in str(raised.value)
    assert "Error" not in "".join(traceback.format_exception_only(raised.value)).split(":", 1)[1]


def test_did_you_mean() -> None:
    assert did_you_mean("StartingOffset", ["startingOffsets", "x"]) == "did you mean startingOffsets?"
    assert did_you_mean("zzz", ["startingOffsets"]) == ""


def test_options_stay_visible() -> None:
    import inspect

    assert "max_concurrency" in inspect.signature(kl.Pipeline).parameters
    assert "lanes" in inspect.signature(kl.spark.start).parameters
    assert pickle.loads(pickle.dumps(kl.Retries(max_attempts=2))) == kl.Retries(max_attempts=2)
