"""`KnownConfigs`: what is set for single groups of KIP-848 in place of the servers' options.

The idea: Apache Kafka keeps the configs of groups, replicated, and whoever alters them through a server alters them
there (IncrementalAlterConfigs is passed on). So the servers keep none: they ask for those of the groups that they hear
of, all in one question, and what they do not understand or allow has no effect here.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

from kio.serial.errors import SerialError

from keylane.broker.config_resources import GROUP, GROUP_SOURCE
from keylane.broker.group_configs import GROUP_CONFIGS, checked, numbers_of
from keylane.errors import UsageError
from keylane.kafka.link import Link
from keylane.offset_servers.freshness import Freshness
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.primitives import FieldError, array_length, string
from keylane.wire.versions import read_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.broker.config import BrokerConfig
    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address

    Settings = Mapping[str, Mapping[str, str]]
    """Configs by group."""

logger = logger_of("keylane.offsets")

DESCRIBE_CONFIGS, VERSION = 32, 1
ASK_S = 3.0
"""How long one broker is asked: members wait for it."""
FORGET_S = 300.0
"""A group that nobody has needed for so long is asked for no more."""
_CORRELATION_ID = bytes(4)
_NAMES = array_length(len(GROUP_CONFIGS)) + b"".join(map(string, GROUP_CONFIGS))
_GROUP = bytes((GROUP,))
_NO_SYNONYMS = b"\0"
_KNOWS_NO_GROUPS = (codes.INVALID_REQUEST, codes.UNSUPPORTED_VERSION)
"""What a broker of before Apache Kafka 4.0 says of a group's configs."""


def ask_configs(brokers: Sequence[Address], login: Login, groups: Sequence[str]) -> Settings:
    """What is set for these groups, as the first broker tells that answers. Blocks. Raises `OSError` when none does."""
    problem = OSError("no broker of the log's cluster is known")
    body = array_length(len(groups)) + b"".join(_GROUP + string(one) + _NAMES for one in groups) + _NO_SYNONYMS
    for address in brokers:
        try:
            with closing(Link(address, login, ASK_S)) as link:
                return read_configs(link.ask(DESCRIBE_CONFIGS, VERSION, body))
        except OSError as error:
            problem = error
    raise problem


def read_configs(answer: bytes) -> Settings:
    """Of the answer to DescribeConfigs. Raises `OSError`."""
    try:
        results = read_response("describe_configs", VERSION, _CORRELATION_ID + answer)[0].results
    except (SerialError, FieldError) as error:
        raise OSError(f"a broker's answer to DescribeConfigs cannot be read: {error}") from error
    found = {}
    for one in results:
        if one.error_code not in (codes.NONE, *_KNOWS_NO_GROUPS):
            raise OSError(f"error {int(one.error_code)} for group {one.resource_name!r}: {one.error_message}")
        found[one.resource_name] = {
            config.name: config.value
            for config in one.configs
            if config.config_source == GROUP_SOURCE and config.value is not None
        }
    return found


class KnownConfigs:
    """A coordinator's `group_configs`. Belongs to the event loop's thread."""

    def __init__(self, ask: Callable[[Sequence[str]], Settings], config: BrokerConfig) -> None:
        """`ask` blocks, in a thread, and raises `OSError`; `config` bounds what may be set."""
        self._ask = ask
        self._config = config
        self._needed: dict[str, float] = {}
        """When each group was last asked for."""
        self._numbers: dict[str, dict[str, int]] = {}
        self._freshness = Freshness("configs of groups in the log's cluster", self._learn)

    def of(self, group: str) -> Mapping[str, int]:
        return self._numbers.get(group, {})

    def texts(self, group: str) -> dict[str, str]:
        return {name: str(number) for name, number in self.of(group).items()}

    async def be_fresh(self, groups: Iterable[str], within_s: float) -> None:
        """Return when what is known of these is from so long before this call, or later; or when nobody has answered
        now."""
        now_s = asyncio.get_running_loop().time()
        for group in groups:
            if group not in self._needed:
                within_s = 0.0
            self._needed[group] = now_s
        if self._needed:
            await self._freshness.reach(within_s)

    async def _learn(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - FORGET_S
        self._needed = {group: at_s for group, at_s in self._needed.items() if at_s >= oldest_s}
        found = await asyncio.to_thread(self._ask, list(self._needed))
        self._numbers = {group: self._allowed(group, settings) for group, settings in found.items() if settings}

    def _allowed(self, group: str, settings: Mapping[str, str]) -> dict[str, int]:
        """What has an effect: all, or where the servers' options do not allow it, nothing."""
        try:
            return numbers_of(checked(settings, self._config))
        except UsageError as error:
            logger.warning("group %r: what its configs in the log's cluster say has no effect here: %s", group, error)
            return {}
