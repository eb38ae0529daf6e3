"""What holds for a share group: its own configs before the broker's options."""

from __future__ import annotations

from typing import cast

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.group_configs import GROUP_CHOICES, GroupConfigs, checked, numbers_of
from keylane.broker.share_settings import share_settings
from keylane.coordinator.share_groups.partition import Limits
from keylane.coordinator.share_groups.protocol import ShareSettings
from keylane.errors import UsageError


class Configs:
    """Those of one group."""

    def __init__(self, texts: dict[str, str], config: BrokerConfig) -> None:
        self._texts = checked(texts, config)
        self._numbers = numbers_of(self._texts)

    def of(self, group: str) -> dict[str, int]:
        return self._numbers

    def choice(self, group: str, name: str) -> str:
        return self._texts.get(name, GROUP_CHOICES[name].default)


def settings(
    texts: dict[str, str], config: BrokerConfig | None = None, *, can_have_letters: bool = True
) -> ShareSettings:
    config = config or BrokerConfig()
    configs = cast("GroupConfigs", Configs(texts, config))
    return share_settings("g", configs, config, can_have_letters=can_have_letters)


def test_the_groups_own_come_first() -> None:
    broker = BrokerConfig(group_share_delivery_count_limit=7, group_share_max_size=9)
    found = settings({"share.record.lock.duration.ms": "20000", "share.isolation.level": "read_committed"}, broker)
    assert found == ShareSettings(45_000, 5_000, 0, 9, Limits(20_000, 7, 2_000), "latest", True, True)
    assert settings({"share.delivery.count.limit": "3", "share.renew.acknowledge.enable": "false"}, broker)[4:] == (
        Limits(30_000, 3, 2_000),
        "latest",
        False,
        False,
    )


def test_configs_are_kept_as_they_were_understood() -> None:
    given = {
        "share.record.lock.duration.ms": " +020000 ",
        "share.isolation.level": " read_committed",
        "share.renew.acknowledge.enable": "FALSE ",
        "errors.deadletterqueue.topic.name": " Letters",
    }
    kept = {
        "share.record.lock.duration.ms": "20000",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
        "errors.deadletterqueue.topic.name": "Letters",
    }
    assert checked(given, BrokerConfig()) == kept
    assert checked(kept, BrokerConfig()) == kept


def test_there_are_dead_letters_where_a_topic_is_named_and_the_feature_allows_them() -> None:
    named = {"errors.deadletterqueue.topic.name": "dlq.flights"}
    assert settings(named).limits.has_letters
    assert not settings(named, can_have_letters=False).limits.has_letters
    assert not settings({}).limits.has_letters


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000),
        ("P2D", 172_800_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0.001S", 1),
        ("PT90M", 5_400_000),
        ("pt1h", 3_600_000),
        ("+P2DT+1S ", 172_801_000),
    ],
)
def test_how_far_back(text: str, ms: int) -> None:
    assert settings({"share.auto.offset.reset": f"by_duration:{text}"}).reset == ms


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "1H", "PT1X", "-PT1H", ""])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match=r"Invalid value by_duration:.* for configuration share\.auto\.offset\.reset"):
        settings({"share.auto.offset.reset": f"by_duration:{text}"})


def test_heartbeats_come_more_often_than_sessions_end() -> None:
    broker = BrokerConfig(group_share_min_session_timeout_ms=1, group_share_min_heartbeat_interval_ms=1)
    with pytest.raises(UsageError, match=r"share\.session\.timeout\.ms must be greater than share\.heartbeat"):
        settings({"share.session.timeout.ms": "5000"}, broker)
    with pytest.raises(UsageError, match=r"group\.share\.heartbeat\.interval\.ms=6000: give less than"):
        BrokerConfig(
            group_share_min_session_timeout_ms=1,
            group_share_session_timeout_ms=6_000,
            group_share_heartbeat_interval_ms=6_000,
        )
