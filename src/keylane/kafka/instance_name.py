"""`InstanceName`: whose is the name (`group.instance.id`) that a static member has in its group?

The idea: a coordinator fences whoever uses a name under another member id than the one that it knows. That may be
another process, which has taken the name. But it may as well be the member itself: the ids that a coordinator gives out
while a group rebalances are in its log only when the rebalance has come to its end, so that one that restarts meanwhile
knows the member by its earlier id; and a request that was tried again may carry an id that the member has given up.
librdkafka cannot tell the two apart, and gives its client up. The coordinator can be asked who holds the name: an id
that this consumer had, or that was there before it came, is no other process that came later.

A coordinator gives a static member that comes back what it had, and asks nobody to divide the partitions anew, also
when it comes back with other topics, or partitions were added meanwhile: what it had is of before, and what is new is
nobody's. So a predecessor that is behind is taken out of the group first, and the group divides all anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError

from keylane.consumer.snapshot import some_of
from keylane.errors import BrokerUnavailableError, FencedError, PeerError, UsageError
from keylane.kafka import exact, exact_transactions
from keylane.kafka.coordinator_requests import ask_coordinator, check_code, take_out
from keylane.telling import logger_of
from keylane.wire.primitives import FieldError, FieldReader, array_length, string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from confluent_kafka import Consumer

    from keylane.kafka.logs import Patience

logger = logger_of("keylane.kafka")

Name = tuple[str, int]
"""Topic and partition."""

_DESCRIBE_GROUPS, _DESCRIBE_VERSION = 15, 4
"""Version 4 (Kafka 2.4) is the first that tells members' names."""


class Holder(NamedTuple):
    """The member that has a name."""

    member_id: str
    topics: frozenset[str] | None
    """What it is subscribed to; None while the group rebalances."""
    assigned: frozenset[Name] | None
    """What the members of the group have, this one among them; None while the group rebalances."""


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

    def look(self, partitions: Callable[[], Iterable[Name]], patience: Patience) -> None:
        """Before the first join, with the partitions that will be subscribed to and are there: whoever has the name now
        is older. Without an answer nobody is known to be."""
        whose = f"member {self.name!r} of group {self._group!r}"
        try:
            self._patiently(lambda: self._know_predecessor(partitions), patience, whose)
        except BrokerUnavailableError as error:
            logger.warning("%s", error)
        except (PeerError, UsageError) as error:
            logger.warning("%s: who has the name is not known: %s", whose, error)

    def _know_predecessor(self, partitions: Callable[[], Iterable[Name]]) -> Holder | None:
        holder = self._holder()
        if holder is not None:
            self._ours_or_older.add(holder.member_id)
            if (why := _behind(holder, frozenset(partitions()))) is not None:
                whose = f"member {self.name!r} of group {self._group!r}"
                logger.info("%s: %s: the group divides its partitions anew", whose, why)
                self._take_out(holder)
        return holder

    def leave(self, patience: Patience) -> None:
        """Take this member out of its group, in which it would stay for a session. Raises `BrokerUnavailableError`,
        `PeerError` and `UsageError`."""

        def taken_out() -> Holder | None:
            holder = self._holder()
            if holder is not None and holder.member_id in self._ours_or_older:
                self._take_out(holder)
            return holder

        self._patiently(taken_out, patience, f"member {self.name!r} of group {self._group!r}")

    def _take_out(self, holder: Holder) -> None:
        take_out(self._kafka, self._group, holder.member_id, self.name)

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
        try:
            holder = self._patiently(self._holder, patience, self._fenced)
        except UsageError as error:
            raise PeerError(f"{self._fenced}: who has the name cannot be read: {error}") from None
        if holder is not None and holder.member_id not in self._ours_or_older:
            raise FencedError(
                f"{self._fenced}: another process has joined under the same group.instance.id (as {holder.member_id}); "
                "give each process a name of its own"
            )

    @property
    def _fenced(self) -> str:
        return f"FENCED_INSTANCE_ID: member {self.name!r} of group {self._group!r} is fenced"

    def _patiently(self, ask: Callable[[], Holder | None], patience: Patience, whose: str) -> Holder | None:
        """Again, where that may help."""
        give_up_at = patience.give_up_at()
        while True:
            try:
                return ask()
            except OSError as error:
                patience.wait(give_up_at, f"{whose}: who has the name cannot be read: {error}")

    def _holder(self) -> Holder | None:
        request = array_length(1) + string(self._group) + b"\0"
        answer = ask_coordinator(self._kafka, self._group, _DESCRIBE_GROUPS, _DESCRIBE_VERSION, request)
        return read_holder(answer, self.name)


def read_holder(answer: bytes, name: str) -> Holder | None:
    """Who has the name, by the answer to DescribeGroups about the one group."""
    reader = FieldReader(answer)
    try:
        reader.int32()  # the throttle time
        reader.int32()  # one group
        check_code(reader.int16())
        _group, state, _type, _protocol = (reader.string() for _ in range(4))
        assigned: set[Name] = set()
        found: tuple[str, bytes] | None = None
        for _ in reader.items():
            member_id, instance, _client_id, _host = (reader.nullable_string() for _ in range(4))
            metadata = reader.sized_bytes()
            assigned.update(_assigned(reader.sized_bytes()))
            if instance == name and member_id is not None:
                found = member_id, metadata
    except FieldError as error:
        raise OSError(f"the coordinator answers what is no description of a group: {error}") from error
    if found is None:
        return None
    return Holder(found[0], _topics(found[1]), frozenset(assigned) if state == "Stable" else None)


def _topics(metadata: bytes) -> frozenset[str] | None:
    """Of a consumer's metadata, in any of its versions."""
    if not metadata:
        return None
    reader = FieldReader(metadata)
    reader.int16()  # the version
    return frozenset(reader.string() for _ in reader.items())


def _assigned(assignment: bytes) -> list[Name]:
    """Of a consumer's assignment, in any of its versions."""
    if not assignment:
        return []
    reader = FieldReader(assignment)
    reader.int16()  # the version
    return [(topic, one) for topic, ones in _by_topic(reader) for one in ones]


def _by_topic(reader: FieldReader) -> Iterator[tuple[str, list[int]]]:
    for _ in reader.items():
        yield reader.string(), [reader.int32() for _ in reader.items()]


def _behind(holder: Holder, partitions: frozenset[Name]) -> str | None:
    """Why what a predecessor had is not all that these partitions of its successor are; None when it is."""
    topics = frozenset(topic for topic, _ in partitions)
    if holder.topics is not None and holder.topics != topics:
        before, now = (", ".join(sorted(some)) or "nothing" for some in (holder.topics, topics))
        return f"it was subscribed to {before}, and is to {now} now"
    given = {topic for topic, _ in holder.assigned or ()}  # one of which nobody has any may be for nobody to have
    left = sorted(name for name in partitions - (holder.assigned or set()) if name[0] in given)
    return f"nobody has {some_of([f'{topic}-{one}' for topic, one in left])}" if left else None


def is_fenced(client: Consumer, error: KafkaError) -> bool:
    """Whether this error of the client's is the end of it because its name is another's."""
    return _is_the_end(client, error, KafkaError.FENCED_INSTANCE_ID)


def is_unreleased(client: Consumer, error: KafkaError) -> bool:
    """Whether it is the end of it because the name's last member has not left (KIP-848)."""
    return _is_the_end(client, error, KafkaError.UNRELEASED_INSTANCE_ID)


def _is_the_end(client: Consumer, error: KafkaError, code: int) -> bool:
    fatal = KafkaError._FATAL  # noqa: SLF001 - the client's name
    return error.code() in (fatal, code) and exact.fatal_code(client) == code
