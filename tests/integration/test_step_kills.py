"""Members with steps are killed, frozen and replaced, and their broker is killed: no call is repeated whose answer was
acknowledged, and no step has two answers.

KEYLANE_STEP_FAULTS says how many faults there are (6; `make soak` has 300).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from kit.stage import Stage
from kit.step_faults import PARTITIONS, check_faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = 300
"""250 are SIGKILLs, of members and of the broker, and 50 members are frozen."""


@pytest.mark.full
def test_no_call_is_repeated_whose_answer_was_acknowledged(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    faults = int(os.environ.get("KEYLANE_STEP_FAULTS", "6"))
    check(tmp_path, faults, record_property)


@pytest.mark.soak
def test_nor_is_one_after_many_faults(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    check(tmp_path, MANY, record_property)


def check(folder: Path, faults: int, record_property: Callable[[str, object], None]) -> None:
    with BrokerProcess(folder / "data", settings={"group.min.session.timeout.ms": "1000"}) as broker:
        stage = Stage(broker.bootstrap, "paid")
        stage.create(PARTITIONS)
        check_faults(stage, broker.restart, faults, record_property)
