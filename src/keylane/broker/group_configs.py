"""The configs of groups: what is set for one group in place of the broker's options, kept in a small state file.

Source: Apache Kafka's `GroupConfig`; of its configs those of consumer groups (KIP-848) and share groups (KIP-932,
KIP-1191) are here.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import UsageError
from keylane.storage.sealed import keep_sealed, read_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem

KIND = "group-configs"


class GroupConfig(NamedTuple):
    """A config that a group may have."""

    option: str
    """The broker's, a field of `BrokerConfig`, that holds for groups without the config."""
    least: str
    """The options that say what it may be."""
    most: str
    about: str


GROUP_CONFIGS = {
    "consumer.session.timeout.ms": GroupConfig(
        "group_consumer_session_timeout_ms",
        "group_consumer_min_session_timeout_ms",
        "group_consumer_max_session_timeout_ms",
        "How long a member may be silent before it is taken for gone.",
    ),
    "consumer.heartbeat.interval.ms": GroupConfig(
        "group_consumer_heartbeat_interval_ms",
        "group_consumer_min_heartbeat_interval_ms",
        "group_consumer_max_heartbeat_interval_ms",
        "How often members are asked to send a heartbeat.",
    ),
    "consumer.assignment.interval.ms": GroupConfig(
        "group_consumer_assignment_interval_ms",
        "group_consumer_min_assignment_interval_ms",
        "group_consumer_max_assignment_interval_ms",
        "The least time between two computations of a group's assignment.",
    ),
}

GROUP_CONFIGS |= {
    f"share.{name.replace('_', '.')}": GroupConfig(
        f"group_share_{name}", f"group_share_min_{name}", f"group_share_max_{name}", about
    )
    for name, about in {
        "session_timeout_ms": "How long a member of a share group may be silent before it is taken for gone.",
        "heartbeat_interval_ms": "How often members of a share group are asked to send a heartbeat.",
        "assignment_interval_ms": "The least time between two computations of a share group's assignment.",
        "record_lock_duration_ms": "How long a record is a member's of a share group.",
        "delivery_count_limit": "How often a record is given to members of a share group at most.",
        "partition_max_record_locks": "How many records of a partition a share group may have in flight.",
    }.items()
}


_NUMBER = re.compile(r"[+-]?\d+")
"""What Java takes for one."""


class GroupChoice(NamedTuple):
    """A config that a group may have, and that the broker has no option for."""

    default: str
    kind: str
    pattern: str
    """What it may be, as a regular expression for the whole."""
    allowed: str
    about: str


DURATION = r"\+?(?i:P(?!$)(?:\+?(\d+)D)?(?:T(?!$)(?:\+?(\d+)H)?(?:\+?(\d+)M)?(?:\+?(\d+(?:\.\d+)?)S)?)?)"
"""Of ISO 8601, as Java reads them: days, hours, minutes, seconds."""
RESET, ISOLATION, RENEW = "share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"
LETTERS_TOPIC = "errors.deadletterqueue.topic.name"
COPIES_RECORDS = "errors.deadletterqueue.copy.record.enable"
GROUP_CHOICES = {
    RESET: GroupChoice(
        "latest",
        "STRING",
        f"earliest|latest|by_duration:{DURATION}",
        "earliest, latest or by_duration:PnDTnHnMn.nS",
        "Where a share group begins in a partition that it has not read.",
    ),
    ISOLATION: GroupChoice(
        "read_uncommitted",
        "STRING",
        "read_committed|read_uncommitted",
        "read_committed or read_uncommitted",
        "Whether a share group is given records of open and aborted transactions.",
    ),
    RENEW: GroupChoice(
        "true",
        "BOOLEAN",
        "true|false",
        "true or false",
        "Whether members of a share group may keep a record for longer.",
    ),
    LETTERS_TOPIC: GroupChoice(
        "",
        "STRING",
        "(?!__).*",
        "a topic's name that does not begin with __, or an empty one for no dead letters",
        "The topic for dead letters of a share group, which takes them (errors.deadletterqueue.group.enable).",
    ),
    COPIES_RECORDS: GroupChoice(
        "false",
        "BOOLEAN",
        "true|false",
        "true or false",
        "Whether a dead letter has the record's key and value, beside the headers that say which record it is.",
    ),
}


def checked(settings: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """The configs as they are kept and shown, as by Apache Kafka: trimmed, numbers and truth values in one spelling.
    Raises `UsageError` for one that is not known, or not allowed."""
    texts = {name: _checked(name, text.strip(), config) for name, text in settings.items()}
    found = numbers_of(texts)
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        times = [found.get(one, getattr(config, GROUP_CONFIGS[one].option)) for one in (session, heartbeat)]
        if times[0] <= times[1]:
            raise UsageError(f"{session} must be greater than {heartbeat}")
    return texts


def _checked(name: str, text: str, config: BrokerConfig) -> str:
    if (choice := GROUP_CHOICES.get(name)) is not None:
        text = text.lower() if choice.kind == "BOOLEAN" else text
        if re.fullmatch(choice.pattern, text) is None:
            raise UsageError(f"Invalid value {text} for configuration {name}: give {choice.allowed}")
        return text
    if name not in GROUP_CONFIGS:
        raise UsageError(f"Unknown group config name: {name}")
    if _NUMBER.fullmatch(text) is None:
        raise UsageError(f"Invalid value {text} for configuration {name}: Not a number of type INT")
    about, number = GROUP_CONFIGS[name], int(text)
    least, most = getattr(config, about.least), getattr(config, about.most)
    if not least <= number <= most:
        raise UsageError(f"{name} must be in the range {least} to {most} inclusive.")
    return str(number)


def numbers_of(texts: Mapping[str, str]) -> dict[str, int]:
    """Those of the checked configs that are numbers."""
    return {name: int(text) for name, text in texts.items() if name in GROUP_CONFIGS}


class GroupConfigs:
    """Of every group that has any; in memory, and in the file before a change is answered."""

    def __init__(self, filesystem: FileSystem, path: str, executor: Executor, config: BrokerConfig) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._config = config
        self._settings: dict[str, dict[str, str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, if there is one. Raises `DataFolderError`."""
        if self._filesystem.exists(self._path):
            self._settings = read_sealed(self._filesystem, self._path, KIND)
            self._numbers = {group: numbers_of(settings) for group, settings in self._settings.items()}

    def of(self, group: str) -> Mapping[str, int]:
        """Those that are numbers."""
        return self._numbers.get(group, {})

    def choice(self, group: str, name: str) -> str:
        """One of `GROUP_CHOICES`."""
        return self._settings.get(group, {}).get(name, GROUP_CHOICES[name].default)

    def groups(self) -> list[str]:
        """Those that have configs of their own, in order."""
        return sorted(self._settings)

    def texts(self, group: str) -> dict[str, str]:
        return dict(self._settings.get(group, {}))

    async def alter(self, group: str, settings: dict[str, str]) -> None:
        """Give a group these configs in place of the ones it has; durable on return.

        Raises `UsageError`, and `StorageError`.
        """
        async with self._change:
            texts = checked(settings, self._config)
            changed = {**self._settings, group: texts}
            if not texts:
                del changed[group]
            await keep_sealed(self._filesystem, self._executor, self._path, KIND, changed)
            self._settings = changed
            self._numbers[group] = numbers_of(texts)
