"""Partitions that are revoked wait for the transaction that has their results, step by step through the seam."""

from __future__ import annotations

from keylane import Output, Pipeline
from keylane.offsets import OffsetMap
from keylane.pipeline import Commit
from keylane.records import PlainMessage
from kit.engines import make_engine
from kit.seam import Make, Start, Workers

T0 = ("t", 0)


def test_a_revoke_is_answered_when_the_results_are_committed() -> None:
    pipeline = Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
        topics=["t"],
        handler=print,
        outputs=["out"],
        delivery="transactional",
        commit=Commit(interval_ms=4_000),
    )
    engine = make_engine(pipeline, Make(Workers(concurrency=1)), lambda: 0.5)
    now = 100.0
    engine.transaction_answered("start", None, now)
    engine.assigned([Start(T0, 1, OffsetMap(0), 0, 1)], now)
    engine.polled(T0, 1, [PlainMessage(*T0, 0, b"key", b"value")])
    [call] = engine.plan(now).calls
    engine.ended([(call.items[0], [Output("out")])], now)
    [sending] = engine.plan(now).produce
    engine.answered(sending, 0, None, now)
    assert engine.plan(now).commit is None, "the period is not over"

    engine.revoking([T0], "token", now)
    plan = engine.plan(now)
    assert plan.commit is not None
    assert [(one.name, one.offset) for one in plan.commit.entries] == [(T0, 1)]
    assert (plan.revoked, plan.abort) == ([], None)
    assert engine.plan(now + 0.01).revoked == [], "it is on its way"
    engine.transaction_answered("commit", None, now + 0.02)
    [answer] = engine.plan(now + 0.02).revoked
    assert (answer.token, answer.commit.entries) == ("token", [])
