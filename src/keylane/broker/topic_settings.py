"""Topic configs that can be given at creation. What would be ignored is refused, so that nobody relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.config import BrokerConfig

HONOURED = {
    "segment.bytes": (1_024, "log_segment_bytes"),
    "index.interval.bytes": (0, "log_index_interval_bytes"),
    "max.message.bytes": (0, "message_max_bytes"),
}
"""Name -> least value, and the broker's option that is the default."""

FIXED = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""What every topic is; giving another value is refused."""

_WAY_OUT = (
    f"leave it out (honoured are {', '.join(HONOURED)}; "
    f"fixed are {', '.join(f'{name}={value}' for name, value in FIXED.items())})"
)


def check_settings(settings: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings to keep. Raises `UsageError` for one that this broker would not honour."""
    kept = {}
    for name, value in settings:
        if value is None:
            raise UsageError(f"topic config {name} without a value: {_WAY_OUT}")
        if name in FIXED:
            if value != FIXED[name]:
                raise UsageError(f"topic config {name}={value} is not offered by this broker: {_WAY_OUT}")
        elif name in HONOURED:
            least = HONOURED[name][0]
            if not value.isdigit() or not least <= int(value) < 2**31:
                raise UsageError(f"topic config {name}={value}: give a number from {least} to {2**31 - 1}")
            kept[name] = value
        else:
            raise UsageError(f"topic config {name}={value} is not offered by this broker: {_WAY_OUT}")
    return kept


def setting(settings: dict[str, str], name: str, config: BrokerConfig) -> int:
    """The value that holds for a topic: its own, or the broker's."""
    own = settings.get(name)
    return int(own) if own is not None else int(getattr(config, HONOURED[name][1]))
