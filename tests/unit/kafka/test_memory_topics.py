"""What is wrong with a topic that is to remember."""

from __future__ import annotations

import pytest

from keylane.kafka.memory_topics import COMMANDS, LETTERS, REPORTS, SINKS, Need, faults


@pytest.mark.parametrize("need", [COMMANDS, REPORTS, SINKS])
def test_as_keylane_makes_it_nothing_is_wrong(need: Need) -> None:
    assert faults(need, need.config, 1) == []


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact", ""])
@pytest.mark.parametrize("need", [COMMANDS, SINKS])
def test_what_is_to_hold_for_ever_is_not_deleted_by_age(need: Need, policy: str) -> None:
    (wrong,) = faults(need, {"cleanup.policy": policy}, 1)
    assert wrong.endswith(f": set compact, or {need.otherwise}")


def test_letters_of_one_key_all_stay() -> None:
    assert faults(LETTERS, {"cleanup.policy": "delete", "retention.ms": "1"}, 12) == []
    for policy in ("compact", "compact,delete"):
        assert faults(LETTERS, {"cleanup.policy": policy}, 12) == [
            f"cleanup.policy={policy}: set delete, or a letter goes when another one of its key comes"
        ]


def test_answers_stay_for_a_day_and_have_the_brokers_time() -> None:
    short = {"cleanup.policy": "delete", "retention.ms": "3000", "message.timestamp.type": "CreateTime"}
    assert [wrong.partition("=")[0] for wrong in faults(REPORTS, short, 1)] == [
        "retention.ms",
        "message.timestamp.type",
    ]
    for_ever = {"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
    assert faults(REPORTS, for_ever, 1) == []
    assert faults(REPORTS, for_ever | {"cleanup.policy": "compact", "retention.ms": "5"}, 1) == []
    assert faults(COMMANDS, COMMANDS.config, 3) == ["it has 3 partitions: make it with 1"]
