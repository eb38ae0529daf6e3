"""What comes back from a worker process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from keylane.flow.outcomes import Failure
from keylane.flow.workers import processors
from keylane.flow.workers.crossing import Answer, loaded, packed
from keylane.foreign_errors import class_of, text_of
from keylane.records import Output
from kit.awkward import ALL, Spec, made

if TYPE_CHECKING:
    from pathlib import Path


def crossed(outcome: Any, classes: dict[tuple[str, str], type] | None = None) -> Any:
    [again] = loaded(packed(Answer([outcome], 5)), classes or {}, 1).outcomes
    return again


@pytest.mark.parametrize("spec", ALL, ids=lambda one: one[0])
def test_any_failure_crosses_with_its_class_its_text_and_its_meaning(spec: Spec) -> None:
    error = made(spec)
    again = crossed(Failure(error, final=True, places=[("file", 1, "function")]))
    assert (class_of(again.error), text_of(again.error)) == (class_of(error), text_of(error))
    assert (again.final, list(again.places)) == (True, [("file", 1, "function")])


def test_a_class_that_nobody_has_is_told_by_its_name() -> None:
    class LocalError(Exception):
        pass

    name = (LocalError.__module__, LocalError.__name__)
    assert type(crossed(Failure(LocalError("x")), {name: LocalError}).error) is LocalError
    told = crossed(Failure(LocalError("x"))).error
    assert (class_of(told), text_of(told)) == (f"{__name__}.{LocalError.__qualname__}", "x")


def test_values_cross_and_what_cannot_is_a_failure_of_its_item_alone() -> None:
    output = Output("t", b"k", b"v")
    answer = loaded(packed(Answer([None, (output,), threading.Lock()], 5)), {}, 3)
    assert answer.outcomes[:2] == [None, (output,)]
    assert "what the handler returned cannot leave its process: TypeError" in text_of(answer.outcomes[2].error)
    [damaged] = loaded(b"no pickle", {}, 1).outcomes
    assert damaged.final


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, 1),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_processors_are_those_that_one_may_use(
    files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    folder = tmp_path / "groups" / "a"
    (folder / "b").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(processors, "OWN_CGROUP", own)
    monkeypatch.setattr(processors, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)})
    assert processors.usable_processors() == (expected or 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert processors.usable_processors() == 1
