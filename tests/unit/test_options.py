"""A pipeline refuses what cannot work, in one line that names the option, the value and the way out."""

from typing import Any

import cloudpickle
import pytest

import keylane as kl
from keylane.guarantees import check_dataframe_delivery, duration_ms
from keylane.records import PlainMessage

KAFKA = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "g"}


def handler(record: kl.Record) -> None:
    assert record


async def async_handler(record: kl.Record, context: kl.Context) -> None:
    assert record
    assert context


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
        ({"topics": [], "assignment": [("t", 0)], "on_exhausted": kl.DeadLetter("t")}, "is 't', which the pipeline"),
        ({"topics": ["a", "^t"], "outputs": ["out", "t2"]}, "outputs is 't2', which the pipeline reads itself (a, ^t)"),
        ({"topics": "^t("}, "topics: '^t(' is no regular expression"),
        ({"topics": []}, "topics=[]"),
        ({"handler": 3}, "handler=3"),
        ({"handler": lambda: None}, "give a function of (record) or (record, context)"),
        ({"handler": lambda _a, _b, _c: None}, "give a function of (record) or (record, context)"),
        ({"ordering": "keys"}, "ordering='keys': give one of 'key', 'partition', 'unordered'"),
        ({"delivery": "twice"}, "delivery='twice': give one of 'at_most_once', 'at_least_once'"),
        ({"offset_reset": "none"}, "offset_reset='none'"),
        ({"max_concurrency": 0}, "max_concurrency=0: give a whole number of at least 1"),
        ({"threads": True}, "threads=True"),
        ({"retries": 3}, "retries=3: give keylane.Retries"),
        ({"on_exhausted": "skip"}, "on_exhausted='skip': give keylane.DeadLetter"),
        ({"resource": 1}, "resource=1"),
        ({"on_produced": 1}, "on_produced=1: give a function of one keylane.Produced"),
        ({"on_produced": async_handler}, "is a coroutine function: it runs in a thread; give a plain one"),
        ({"tracing": True}, "tracing=True: give one of 'auto', 'on', 'off'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"max_concurrency": "all"}, "max_concurrency='all'"),
        ({"workers": "fork"}, "workers='fork': give one of 'auto', 'process'"),
        ({"processes": 0}, "processes=0"),
        ({"traversal": "deep"}, "traversal='deep': give one of 'fair', 'depth_first'"),
        ({"rates": 5}, "rates=5: give keylane.Rates"),
        ({"not_before": 5}, "not_before=5: give a function"),
        ({"max_uncommitted": 0}, "max_uncommitted=0"),
        ({"max_buffered_bytes": 0}, "max_buffered_bytes=0"),
        ({"batch_min_size": 2, "batch_linger_ms": 1}, "batch_min_size=2: give at most the batch_size, which is 1"),
        ({"batch_size": 9, "batch_min_size": 2}, "batch_linger_ms=0: a least size needs a time to wait"),
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
        (lambda: kl.Retries(max_age_ms=-1), "Retries.max_age_ms=-1"),
    ],
)
def test_wrong_rates_and_ages_are_refused_by_name(make: Any, text: str) -> None:
    with pytest.raises(kl.UsageError, match=text.replace(".", "[.]")):
        make()


@pytest.mark.parametrize("delivery", ["at_most_once", "almost_once", "transactional", "exactly_once"])
def test_guarantees_that_dataframes_cannot_give_are_refused(delivery: str) -> None:
    with pytest.raises(kl.UsageError, match=f"delivery='{delivery}' is for pipelines in one process and in lanes: "):
        check_dataframe_delivery(delivery)
    check_dataframe_delivery("at_least_once")


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


EXTERNAL: dict[str, Any] = {"commits": "external", "start_offsets": dict}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"start_offsets": dict}, "start_offsets is for commits='external'"),
        ({"commits": "external"}, "commits='external' needs a function"),
        ({"commits": "kafka"}, "commits='kafka': give one of 'group', 'external'"),
        (EXTERNAL | {"delivery": "at_most_once"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": "almost_once"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": "transactional"}, "needs commits that keylane makes"),
        (EXTERNAL | {"delivery": "exactly_once", "store": "a.db"}, "needs commits that keylane makes"),
        (EXTERNAL | {"on_committed": print}, "there are no commits: use on_commit"),
    ],
)
def test_what_offsets_kept_elsewhere_cannot_have(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError, match=text):
        pipeline(**changes)
