"""Topics that are keylane's memory: what each has to be, and what is wrong with one that is not. Pure.

Whoever makes such a topic, an administrator or a cluster that makes topics by itself, gives it the cluster's defaults.
Then it forgets in silence: by age what is to hold for ever, or by key what is to be kept of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_MS = 24 * 3_600_000
FOR_EVER = -1


class Need(NamedTuple):
    """What a topic has to be."""

    config: Mapping[str, str]
    """With what keylane makes it."""
    policies: frozenset[frozenset[str]]
    """Values of `cleanup.policy` under which nothing is forgotten."""
    otherwise: str
    """What happens under the others."""
    least_retention_ms: int = 0
    """Where records are deleted by age."""
    timestamp_type: str | None = None
    partitions: int | None = 1
    """None: any number."""


_COMPACT, _DELETE = frozenset({"compact"}), frozenset({"delete"})

COMMANDS = Need({"cleanup.policy": "compact"}, frozenset({_COMPACT}), "what operators have ordered is forgotten by age")
REPORTS = Need(
    {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(7 * DAY_MS),
        "message.timestamp.type": "LogAppendTime",  # how old a report is does not hang on the member's clock
    },
    frozenset({_COMPACT, _DELETE, _COMPACT | _DELETE}),
    "",
    least_retention_ms=DAY_MS,
    timestamp_type="LogAppendTime",
)
SINKS = Need({"cleanup.policy": "compact"}, frozenset({_COMPACT}), "which batches were written is forgotten by age")
BUDGETS = Need(
    {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime", "retention.ms": str(7 * DAY_MS)},
    frozenset({_DELETE}),
    "asks that came before are forgotten by key",
    timestamp_type="LogAppendTime",
)
LETTERS = Need({}, frozenset({_DELETE}), "a letter goes when another one of its key comes", partitions=None)


def faults(need: Need, settings: Mapping[str, str], partitions: int) -> list[str]:
    """What is wrong with a topic of these settings, each with the way out."""
    found = []
    if need.partitions not in (None, partitions):
        found.append(f"it has {partitions} partitions: make it with {need.partitions}")
    policy = frozenset(settings.get("cleanup.policy", "").replace(" ", "").split(",")) - {""}
    if policy not in need.policies:
        wanted = ",".join(sorted(min(need.policies, key=sorted)))
        found.append(f"cleanup.policy={','.join(sorted(policy))}: set {wanted}, or {need.otherwise}")
    retention_ms = int(settings.get("retention.ms", FOR_EVER))
    if "delete" in policy and FOR_EVER < retention_ms < need.least_retention_ms:
        found.append(
            f"retention.ms={retention_ms}: set {need.least_retention_ms} at least, or members' answers are lost"
        )
    kind = settings.get("message.timestamp.type", need.timestamp_type)
    if need.timestamp_type not in (None, kind):
        found.append(f"message.timestamp.type={kind}: set {need.timestamp_type}, or members' clocks count")
    return found
