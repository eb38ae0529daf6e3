"""`InstanceName`: whose is the name (`group.instance.id`) that a static member has in its group?

The idea: a coordinator fences whoever uses a name under another member id than the one that it knows. That may be
another process, which has taken the name. But it may as well be the member itself: the ids that a coordinator gives out
while a group rebalances are in its log only when the rebalance has come to its end, so that one that restarts meanwhile
knows the member by its earlier id; and a request that was tried again may carry an id that the member has given up.
librdkafka cannot tell the two apart, and gives its client up. The coordinator can be asked who holds the name: an id
that this consumer had, or that was there before it came, is no other process that came later.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from keylane.errors import FencedError, PeerError, UsageError
from keylane.kafka import exact, exact_transactions
from keylane.wire.primitives import FieldError, FieldReader, array_length, string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer

    from keylane.kafka.link import Link
    from keylane.kafka.logs import Patience

logger = logging.getLogger("keylane.kafka")

ANSWER_S = 5.0
"""How long one question to a broker waits."""

_DESCRIBE_GROUPS, _VERSION = 15, 4
"""Version 4 (Kafka 2.4) is the first that tells members' names."""


class InstanceName:
    """The name of one consumer, which may come to be several members under it, one after the other.

    Thread safety: the group's thread.
    """

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self.name = str(kafka["group.instance.id"])
        self._group = str(kafka["group.id"])
        self._kafka = kafka
        self._ours_or_older: set[str] = set()
        """Member ids that cannot be another process's that came after this one."""

    def look(self) -> None:
        """Before the first join: whoever has the name now is older. Without an answer nobody is known to be."""
        try:
            holder = self._holder()
        except (OSError, PeerError, UsageError) as error:
            logger.info("who is member %r of group %r is not known: %s", self.name, self._group, error)
        else:
            if holder is not None:
                self._ours_or_older.add(holder)

    def note(self, client: Consumer) -> str:
        """This client is our member; returns its id, which is empty while it has none."""
        with exact_transactions.member(client) as member:
            if member.member_id:
                self._ours_or_older.add(member.member_id)
            return member.member_id

    def check_fence(self, client: Consumer, patience: Patience) -> None:
        """The coordinator has fenced our client. Returns if that was by an id of ours or an older one, so that joining
        again takes the name from nobody; raises `FencedError` when another process has it, and `PeerError` when nobody
        says who."""
        if not self.note(client):
            return  # it was about to join anew when an earlier request of its own was answered
        give_up_at = patience.give_up_at()
        while True:
            try:
                holder = self._holder()
            except OSError as error:
                patience.wait(give_up_at, f"{self._fenced}: who has the name cannot be read: {error}")
            except UsageError as error:
                raise PeerError(f"{self._fenced}: who has the name cannot be read: {error}") from None
            else:
                break
        if holder is not None and holder not in self._ours_or_older:
            raise FencedError(
                f"{self._fenced}: another process has joined under the same group.instance.id (as {holder}); give each "
                "process a name of its own"
            )

    @property
    def _fenced(self) -> str:
        return f"FENCED_INSTANCE_ID: member {self.name!r} of group {self._group!r} is fenced"

    def _holder(self) -> str | None:
        """The id of the member that has the name. Raises `OSError` for no answer now, and `UsageError` for a login that
        librdkafka has and keylane has not."""
        from keylane.kafka.conditional import coordinator_of
        from keylane.kafka.link import Link, addresses_of
        from keylane.kafka.login import login_of

        login = login_of(self._kafka)
        problem = OSError("no address")
        for address in addresses_of(self._kafka):
            try:
                with closing(Link(address, login, ANSWER_S)) as bootstrap:
                    coordinator = coordinator_of(bootstrap, self._group)
                if coordinator is None:
                    raise OSError("the group has no coordinator at the moment")
                with closing(Link(coordinator, login, ANSWER_S)) as link:
                    return self._read(_described(link, self._group))
            except OSError as error:
                problem = error
        raise problem

    def _read(self, answer: bytes) -> str | None:
        """The answer to DescribeGroups about the one group."""
        reader = FieldReader(answer)
        try:
            reader.int32()  # the throttle time
            reader.int32()  # one group
            if code := reader.int16():
                raise OSError(f"the coordinator answers with Kafka's error code {code}")
            for _ in range(4):  # group, state, protocol type, protocol
                reader.string()
            holder = None
            for _ in reader.items():
                member_id, name, _client_id, _host = (reader.nullable_string() for _ in range(4))
                reader.sized_bytes()  # its metadata
                reader.sized_bytes()  # its assignment
                if name == self.name:
                    holder = member_id
        except FieldError as error:
            raise OSError(f"the coordinator answers what is no description of a group: {error}") from error
        return holder


def is_fenced(client: Consumer, error: KafkaError) -> bool:
    """Whether this error of the client's is the end of it because its name is another's."""
    fatal = KafkaError._FATAL  # noqa: SLF001 - the client's name
    return error.code() in (fatal, KafkaError.FENCED_INSTANCE_ID) and (
        exact.fatal_code(client) == KafkaError.FENCED_INSTANCE_ID
    )


def _described(link: Link, group: str) -> bytes:
    return link.ask(_DESCRIBE_GROUPS, _VERSION, array_length(1) + string(group) + b"\0")
