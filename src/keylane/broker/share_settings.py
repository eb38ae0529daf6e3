"""What holds for a share group: its own configs, and the broker's options for the others."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING

from keylane.broker.group_configs import DURATION, GROUP_CONFIGS, ISOLATION, LETTERS_TOPIC, RENEW, RESET
from keylane.coordinator.share_groups.partition import Limits
from keylane.coordinator.share_groups.protocol import EARLIEST, LATEST, ShareSettings

if TYPE_CHECKING:
    from keylane.broker.config import BrokerConfig
    from keylane.broker.group_configs import GroupConfigs

_MILLISECOND = datetime.timedelta(milliseconds=1)


def share_settings(group: str, configs: GroupConfigs, config: BrokerConfig, *, can_have_letters: bool) -> ShareSettings:
    """`can_have_letters`: whether the level of `share.version` allows dead letters."""
    own = configs.of(group)

    def number(name: str) -> int:
        value: int = getattr(config, GROUP_CONFIGS[name].option)
        return own.get(name, value)

    return ShareSettings(
        number("share.session.timeout.ms"),
        number("share.heartbeat.interval.ms"),
        number("share.assignment.interval.ms"),
        config.group_share_max_size,
        Limits(
            number("share.record.lock.duration.ms"),
            number("share.delivery.count.limit"),
            number("share.partition.max.record.locks"),
            can_have_letters and bool(configs.choice(group, LETTERS_TOPIC)),
        ),
        _reset(configs.choice(group, RESET)),
        configs.choice(group, ISOLATION) == "read_committed",
        configs.choice(group, RENEW) == "true",
    )


def _reset(text: str) -> str | int:
    """EARLIEST, LATEST, or how many ms back."""
    if text in (EARLIEST, LATEST):
        return text
    found = re.fullmatch(f"by_duration:{DURATION}", text)
    assert found is not None, text
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) // _MILLISECOND
