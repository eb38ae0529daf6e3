"""The scenarios of `make bench-scenarios` in small: both consumers do all of the work; the figures are the bench's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scenarios import __main__ as command
from scenarios import stories

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = {
    "NOTIFICATIONS": 60,
    "PER_SECOND": 100,
    "COUNTED_FROM": 10,
    "STUCK_AT": 20,
    "STUCK_S": 0.2,
    "NOTIFY_S": 0.001,
    "SETTLEMENTS": 200,
    "OUTLETS": 100,
    "SETTLE_S": 0.01,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("scenarios") / "data") as running:
        yield running


@pytest.mark.parametrize("name", ["notification", "burst"])
def test_both_consumers_do_all_of_it(broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in SMALL.items():
        monkeypatch.setattr(stories, constant, value)
    outcome = stories.STORIES[name](broker.bootstrap)
    assert outcome.keylane > 0
    assert outcome.vanilla > 0
    table = command.markdown([outcome])
    assert outcome.name in table
    assert outcome.expected in table
