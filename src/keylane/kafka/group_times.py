"""The times of a group of KIP-848's protocol, which the broker decides: how long a member may be silent, and how often
it is to be heard. librdkafka keeps them to itself, so the broker is asked, by DescribeConfigs of the group (KIP-1043).
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError
from keylane.kafka.link import Link, address_of
from keylane.kafka.login import before_login_of
from keylane.wire.primitives import FieldError, FieldReader, array_length, string

if TYPE_CHECKING:
    from collections.abc import Mapping

DESCRIBE_CONFIGS, VERSION = 32, 1
GROUP_RESOURCE = b"\x20"
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_NAMES = array_length(2) + string(SESSION) + string(HEARTBEAT)
_NO_SYNONYMS = b"\0"


class GroupTimes(NamedTuple):
    """Of one group."""

    session_s: float
    heartbeat_s: float


def ask_group_times(kafka: Mapping[str, Any], coordinator: str, timeout_s: float) -> GroupTimes:
    """Ask the broker at this address. Raises `OSError`; `UsageError` for settings of its TLS that are librdkafka's
    alone; `PeerError` where it does not tell."""
    group = str(kafka["group.id"])
    with closing(Link(address_of(coordinator), before_login_of(kafka), timeout_s)) as link:
        answer = link.ask(DESCRIBE_CONFIGS, VERSION, request_of(group))
    return times_in(answer)


def request_of(group: str) -> bytes:
    """The request's body."""
    return array_length(1) + GROUP_RESOURCE + string(group) + _NAMES + _NO_SYNONYMS


def times_in(answer: bytes) -> GroupTimes:
    """What the answer's body says. Raises `PeerError`."""
    reader = FieldReader(answer)
    found: dict[str, int] = {}
    try:
        reader.int32()  # the throttle time
        for _ in reader.items():
            error, message = reader.int16(), reader.nullable_string()
            if error != 0:
                raise PeerError(f"error {error} of DescribeConfigs: {message}")
            reader.take(1)  # its type
            reader.string()
            for _ in reader.items():
                name, value = reader.string(), reader.nullable_string()
                reader.take(3)  # whether it is read-only, its source, whether it is a secret
                for _ in reader.items():
                    reader.string(), reader.nullable_string()
                    reader.take(1)
                found[name] = int(value or -1)
        return GroupTimes(found[SESSION] / 1000, found[HEARTBEAT] / 1000)
    except (FieldError, ValueError, KeyError) as error:
        raise PeerError(f"DescribeConfigs of a group says no {SESSION} and {HEARTBEAT}: {error}") from error
