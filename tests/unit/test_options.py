"""A pipeline refuses what cannot work, in one line that names the option, the value and the way out."""

import inspect
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import cloudpickle
import pytest
from confluent_kafka.serialization import StringDeserializer

import keylane as kl
from keylane.options import takes_context
from keylane.pipeline import duration_ms
from keylane.records import PlainMessage

KAFKA = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "g"}


def handler(record: kl.Record) -> None:
    assert record


async def async_handler(record: kl.Record, context: kl.Context) -> None:
    assert record
    assert context


def generator(record: kl.Record) -> Iterator[None]:
    yield


async def async_generator(record: kl.Record) -> AsyncIterator[None]:
    yield


def starts(partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    return dict.fromkeys(partitions, 5)


def pipeline(**changes: Any) -> kl.Pipeline:
    options: dict[str, Any] = {"kafka": KAFKA, "topics": ["t"], "handler": handler}
    return kl.Pipeline(**(options | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kafka": {}}, "kafka['bootstrap.servers'] is missing"),
        (
            {"kafka": KAFKA | {"enable.auto.commit": True}},
            "kafka['enable.auto.commit']=True would break offset tracking",
        ),
        ({"kafka": KAFKA | {"auto.offset.reset": "earliest"}}, "use the option offset_reset"),
        ({"topics": "flights"}, "topics='flights': give a list"),
        ({"on_exhausted": kl.DeadLetter("t")}, "the dead-letter topic is 't', which the pipeline reads itself (t)"),
        ({"topics": "^t.*", "on_exhausted": kl.DeadLetter("t.dlq")}, "is 't.dlq', which the pipeline reads itself"),
        ({"topics": kl.Partitions([("t", 0)]), "on_exhausted": kl.DeadLetter("t")}, "is 't', which the pipeline"),
        (
            {"topics": ["a", "^t.*"], "outputs": ["out", "t2"]},
            "outputs is 't2', which the pipeline reads itself (a, ^t.*)",
        ),
        ({"topics": ["t\udcff"]}, "'t\\udcff': no topic is called so"),
        ({"on_exhausted": kl.DeadLetter("a\0b")}, "no topic is called so"),
        ({"topics": "^t("}, "'^t(' has nothing at character 3, where something should be"),
        ({"topics": "^t)"}, "'^t)' has ) at character 2"),
        ({"topics": []}, "topics=[]"),
        ({"handler": 3}, "handler=3"),
        ({"handler": lambda: None}, "give a function of (record) or (record, context)"),
        ({"handler": lambda _a, _b, _c: None}, "give a function of (record) or (record, context)"),
        ({"ordering": "keys"}, "ordering='keys': give one of 'key', 'partition', 'unordered'"),
        ({"delivery": "twice"}, "delivery='twice': give one of 'at_most_once', 'at_least_once'"),
        ({"offset_reset": "none"}, "offset_reset='none'"),
        ({"max_concurrency": 0}, "max_concurrency=0: give a whole number of at least 1"),
        ({"workers": 4}, "workers=4: give keylane.Threads(...) or keylane.Processes(...)"),
        ({"workers": kl.Threads(), "handler": async_handler}, "runs plain functions"),
        ({"batch": 5}, "batch=5: give keylane.Batch"),
        ({"commit": "external"}, "commit='external': give keylane.Commit(...) or keylane.External(...)"),
        ({"topics": []}, "topics=[]: give a list of topic names, or Partitions"),
        ({"retries": 3}, "retries=3: give keylane.Retries"),
        ({"on_exhausted": "skip"}, "on_exhausted='skip': give keylane.DeadLetter"),
        ({"resource": 1}, "resource=1"),
        ({"value_deserializer": lambda data: data}, "it takes (data); give a function of (bytes or None, context)"),
        ({"value_deserializer": json.loads}, "it takes (s, *, cls=None"),
        ({"value_deserializer": bytes.decode}, "it takes (self, /, encoding='utf-8', errors='strict')"),
        ({"key_deserializer": zlib.decompress}, "lambda data, context: None if data is None else function(data)"),
        ({"key_deserializer": str}, "how many arguments it takes cannot be seen"),
        ({"key_deserializer": "utf-8"}, "key_deserializer='utf-8': give a function of (bytes or None, context)"),
        ({"key_deserializer": async_handler}, "is a coroutine function, which goes with a handler that is declared"),
        ({"on_failure": 1}, "on_failure=1: give a function of one keylane.FailedAttempt"),
        ({"on_failure": async_handler}, "is a coroutine function: it runs in a thread; give a plain one"),
        ({"around": 1}, "around=1: give a function of (record) or (record, context)"),
        ({"around": lambda: None}, "it takes (); give a function of (record) or (record, context)"),
        ({"around": async_handler}, "returns no context manager: decorate it"),
        ({"around": generator}, "returns no context manager: decorate it with contextlib.contextmanager"),
        ({"around": asynccontextmanager(async_generator)}, "and the handler is a plain function: make the handler"),
        ({"on_produced": 1}, "on_produced=1: give a function of one keylane.Produced"),
        ({"on_produced": async_handler}, "is a coroutine function: it runs in a thread; give a plain one"),
        ({"tracing": True}, "tracing=True: give one of 'auto', 'on', 'off'"),
        ({"max_concurrency": "all"}, "max_concurrency='all'"),
        ({"workers": "process"}, "workers='process': give keylane.Threads(...) or keylane.Processes(...)"),
        ({"workers": kl.Processes(), "one_processor": True}, "worker processes want processors"),
        ({"traversal": "deep"}, "traversal='deep': give one of 'fair', 'depth_first'"),
        ({"rates": 5}, "rates=5: give keylane.Rates"),
        ({"breaker": 5}, "breaker=5: give keylane.Breaker"),
        ({"breaker": kl.Breaker(), "delivery": "at_most_once"}, "cannot be held: use another delivery"),
        ({"not_before": 5}, "not_before=5: give a function"),
        ({"max_uncommitted": 0}, "max_uncommitted=0"),
        ({"commit": kl.Commit(metadata=lambda *_: "")}, "Commit.metadata: under ordering='key' the metadata"),
        ({"max_buffered_bytes": 0}, "max_buffered_bytes=0"),
    ],
)
def test_a_wrong_option_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        pipeline(**changes)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: kl.Retries(max_attempts=0),
        lambda: kl.Retries(delay_ms=10, max_delay_ms=5),
        lambda: kl.Retries(multiplier=0.5),
        lambda: kl.Retries(jitter=2),
        lambda: kl.DeadLetter(""),
    ],
)
def test_wrong_retries_and_dead_letters_are_refused(make: Any) -> None:
    with pytest.raises(kl.UsageError):
        make()


OLD_NAMES = (
    ("threads", "Threads(count)"),
    ("processes", "Processes(count)"),
    ("batch_size", "Batch(size)"),
    ("batch_linger_ms", "Batch(size, min_size, linger_ms)"),
    ("store", "ExactlyOnce(store)"),
    ("identity", "ExactlyOnce(store, identity=...)"),
    ("assignment", "Partitions([(topic, partition), ...])"),
    ("commit_interval_ms", "Commit(interval_ms=...)"),
    ("offset_metadata_max_bytes", "Commit(metadata_max_bytes=...)"),
    ("on_foreign_metadata", "Commit(on_foreign_metadata=...)"),
    ("start_offsets", "External(start_offsets)"),
    ("timeout_ms", "handler_timeout_ms"),
    ("max_concurency", "did you mean max_concurrency?"),
)


@pytest.mark.parametrize(("name", "now"), OLD_NAMES)
def test_a_name_that_is_no_option_is_answered_with_the_one_that_is(name: str, now: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        pipeline(**{name: 1})
    assert f"Pipeline has no option {name!r}: " in str(error.value)
    assert now in str(error.value)


def test_every_option_is_one_leaf_that_stands_once() -> None:
    values = (
        kl.Batch,
        kl.Threads,
        kl.Processes,
        kl.Transactional,
        kl.ExactlyOnce,
        kl.Partitions,
        kl.Commit,
        kl.External,
    )
    own = [name for made in (*values, kl.Flow, kl.Pipeline) for name in made.__annotations__]
    assert not {name for name in own if own.count(name) > 1} - {"count"}, "of threads, and of processes"
    assert {one.name for one in fields(kl.Flow)} < {one.name for one in fields(kl.Pipeline)}


@pytest.mark.parametrize("made", [kl.Pipeline, kl.Flow, kl.Commit, kl.ExactlyOnce, kl.External])
def test_editors_see_every_option(made: Any) -> None:
    assert sorted(inspect.signature(made).parameters) == sorted(one.name for one in fields(made))


def test_no_secret_is_shown_by_a_pipeline() -> None:
    kafka = KAFKA | {"sasl.password": "hush", "ssl.key.password": "hush", "sasl.username": "me"}
    shown = repr(pipeline(kafka=kafka, delivery=kl.ExactlyOnce("postgresql://me:hush@host/db")))
    assert "hush" not in shown
    assert "'sasl.username': 'me'" in shown


def test_all_of_it_travels_by_cloudpickle() -> None:
    made = pipeline(
        handler=handler,
        topics=kl.Partitions([("t", 3)]),
        workers=kl.Threads(3),
        batch=kl.Batch(9, min_size=2, linger_ms=5),
        delivery=kl.ExactlyOnce("file.db", identity=lambda record: record.value or b"", retention_ms=7),
        commit=kl.Commit(interval_ms=5, every_records=3),
    )
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert (copy.assignment, copy.workers, copy.batch, copy.commit) == (
        (("t", 3),),
        made.workers,
        made.batch,
        made.commit,
    )
    assert (copy.guarantee, copy.delivery.store, copy.delivery.retention_ms) == ("exactly_once", "file.db", 7)


def test_a_pipeline_travels_by_cloudpickle() -> None:
    made = pipeline(handler=async_handler, on_exhausted=kl.DeadLetter("dlq"))
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert copy.is_async
    assert copy.on_exhausted == kl.DeadLetter("dlq")
    assert copy.group_id == "g"


def test_a_record_crosses_a_process_by_value() -> None:
    record = kl.Record(PlainMessage("t", 3, 42, b"k", b"v", (("h", None), ("h", b"2")), (1, 99)))
    copy = cloudpickle.loads(cloudpickle.dumps(record))
    assert (copy.topic, copy.partition, copy.offset, copy.key, copy.value) == ("t", 3, 42, b"k", b"v")
    assert copy.headers == [("h", None), ("h", b"2")]
    assert copy.timestamp_ms == 99
    assert repr(copy) == "Record(t-3@42)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: kl.Rates(records_per_s=0), "Rates.records_per_s=0: give a number above 0"),
        (lambda: kl.Rates(per_key=True), "Rates.per_key=True"),
        (lambda: kl.Rates(burst_ms=-1), "Rates.burst_ms=-1"),
        (lambda: kl.Breaker(failures=0), "Breaker.failures=0: give a whole number of at least 1"),
        (lambda: kl.Breaker(errors=()), r"Breaker.errors=\(\): give a class of exceptions"),
        (lambda: kl.Breaker(errors="OSError"), "Breaker.errors='OSError': give a class of exceptions"),  # type: ignore[arg-type]
        (lambda: kl.Breaker(probe_interval_ms=0), "Breaker.probe_interval_ms=0"),
        (lambda: kl.Breaker(target="host"), "Breaker.target"),  # type: ignore[arg-type]
        (lambda: kl.Breaker(fail_max=3), "failures"),  # type: ignore[call-arg]
        (lambda: kl.Retries(max_age_ms=-1), "Retries.max_age_ms=-1"),
        (lambda: kl.Batch(1), "Batch.size=1: give a whole number of at least 2"),
        (lambda: kl.Batch(3, min_size=4, linger_ms=1), "Batch.min_size=4: give at most the size, which is 3"),
        (lambda: kl.Batch(9, min_size=2), "linger_ms=0: a least size needs a time to wait"),
        (lambda: kl.Threads(True), "Threads.count=True"),
        (lambda: kl.Processes(0), "Processes.count=0"),
        (lambda: kl.Transactional(""), "Transactional.id_prefix=''"),
        (lambda: kl.Partitions([]), "Partitions\\(\\[\\]\\): give a list"),
        (lambda: kl.Partitions([("t", -1)]), "give \\(topic, partition\\)"),
        (lambda: kl.Commit(interval_ms=0), "Commit.interval_ms=0"),
        (lambda: kl.Commit(mode="now"), "Commit.mode='now': give one of 'async', 'sync'"),  # type: ignore[arg-type]
        (lambda: kl.Commit(on_foreign_metadata="skip"), "Commit.on_foreign_metadata='skip'"),  # type: ignore[arg-type]
        (lambda: kl.External(None), "External.start_offsets=None: give a function"),  # type: ignore[arg-type]
        (lambda: kl.External(starts, every_records=-1), "External.every_records=-1"),
    ],
)
def test_wrong_rates_and_ages_are_refused_by_name(make: Any, text: str) -> None:
    with pytest.raises(kl.UsageError, match=text.replace(".", "[.]")):
        make()


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:P7D", 7 * 86_400_000),
        ("by_duration:", None),
        ("by_duration:P", None),
        ("by_duration:P1DT", None),
        ("by_duration:-PT1H", None),
        ("earliest", None),
    ],
)
def test_durations_are_kafkas(text: str, length_ms: int | None) -> None:
    assert duration_ms(text) == length_ms
    if length_ms is None and text != "earliest":
        with pytest.raises(kl.UsageError, match="offset_reset="):
            pipeline(offset_reset=text)


EXTERNAL: dict[str, Any] = {"commit": kl.External(starts)}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (EXTERNAL | {"delivery": "at_most_once"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": "almost_once"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": "transactional"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": kl.ExactlyOnce("a.db")}, "needs commits that keylane makes"),
        (EXTERNAL | {"on_committed": print}, "there are no commits: use on_commit"),
    ],
)
def test_what_offsets_kept_elsewhere_cannot_have(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError, match=text):
        pipeline(**changes)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"identity": "order_id"}, "identity='order_id': a column is for rows of DataFrames"),
        ({"scope": ""}, "ExactlyOnce.scope='': give a text"),
        ({"unseen_commits": "go_on"}, "ExactlyOnce.unseen_commits='go_on': give one of error, rewind, accept"),
    ],
)
def test_what_identities_of_pipelines_cannot_have(options: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError, match=text):
        pipeline(delivery=kl.ExactlyOnce("file.db", **options))


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (lambda _: None, False),
        (lambda _record, _context: None, True),
        (lambda _record, _verbose=False: None, False),
        (lambda _record, context=None: context, True),
        (lambda *arguments: arguments, True),
    ],
)
def test_a_second_argument_is_the_context_unless_it_has_a_default_of_its_own(handler: Any, expected: bool) -> None:
    assert takes_context(handler) is expected


@pytest.mark.parametrize(
    "deserializer",
    [
        lambda data, _: data,
        lambda data, ctx=None: (data, ctx),
        lambda *_: None,
        kl.schema.avro({"url": "http://127.0.0.1:1"}),
        StringDeserializer(),
    ],
)
def test_deserializers_of_bytes_and_a_context(deserializer: Any) -> None:
    pipeline(key_deserializer=deserializer, value_deserializer=deserializer)
    pipeline(handler=async_handler, value_deserializer=async_handler)
