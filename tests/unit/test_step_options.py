"""Which pipelines keep steps, and which are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import keylane as kl

KAFKA = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "g"}


def handle(record: kl.Record, context: kl.Context) -> None: ...


def without_context(record: kl.Record) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery": "at_most_once"}, "steps, delivery='at_most_once': steps are kept under 'at_least_once'"),
        ({"delivery": "transactional"}, "steps, delivery='transactional'"),
        ({"commit": kl.External(lambda _: {})}, "steps: with commit=External(...) there are no commits"),
        ({"batch": kl.Batch(size=2)}, "steps, batch: a step is of one record"),
        ({"workers": kl.Processes()}, "steps, workers=Processes("),
        ({"handler": without_context}, "steps: the handler takes no context"),
        ({"steps": True}, "steps=True: give keylane.Steps(...)"),
        ({"steps": kl.Steps(topic="kept"), "topics": ["a", "b"]}, "Steps.topic='kept': the pipeline may read several"),
        ({"steps": kl.Steps(topic="kept"), "topics": "^a.*"}, "Steps.topic='kept': the pipeline may read several"),
        ({"steps": kl.Steps(topic="a")}, "steps: its topic is 'a', which the pipeline reads itself"),
    ],
)
def test_what_cannot_keep_steps_is_refused_by_name(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"kafka": KAFKA, "topics": ["a"], "handler": handle, "steps": kl.Steps()}
    with pytest.raises(kl.UsageError) as raised:
        kl.Pipeline(**(given | options))
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_topic_has_a_name() -> None:
    with pytest.raises(kl.UsageError, match=r"Steps\.topic='': give the name of a topic"):
        kl.Steps(topic="")


def test_a_context_without_steps_says_where_they_come_from() -> None:
    context = kl.Context()
    for ask in (lambda: context.step(str), lambda: context.forget("ask"), lambda: context.step_key("ask")):
        with pytest.raises(kl.UsageError, match=r"give its Pipeline steps=keylane\.Steps\(\)"):
            ask()
