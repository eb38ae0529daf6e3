"""`ConditionalCommits`: set a group's offsets if, and only if, they are what the caller believes they are.

The idea: an API of keylane's own, which only keylane's broker lists in ApiVersions. Every connection asks for that list
first, so on Apache Kafka (or any other broker) the client refuses before anything is sent that could commit.

An answer that does not come leaves the outcome open: it is told as `OutcomeUnknownError`, and never tried again by
itself, because a second try would fail on the first one's success.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.link import Link, addresses_of
from keylane.kafka.login import login_of
from keylane.kafka.places import for_groups
from keylane.wire.conditional_commit import (
    API_KEY,
    CONDITION_FAILED,
    NO_OFFSET,
    OUTCOME_UNKNOWN,
    VERSION,
    Condition,
    Request,
    Response,
    encode_request,
    read_response,
)
from keylane.wire.primitives import FieldError, FieldReader, string

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

Partition = tuple[str, int]
"""Topic and partition."""

TIMEOUT_MS = 10_000
ASK_AGAIN_S = 0.1
"""Pause before a question is asked again that a starting or moving coordinator did not take."""

_FIND_COORDINATOR = 10
_NOT_NOW = {14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR"}
"""Nothing was committed, and the next moment may be better."""


class ConditionalCommitUnsupportedError(PeerError):
    """The broker does not list conditional commits in ApiVersions; nothing was sent that could commit."""


class ConditionFailedError(PeerError):
    """Some partition's offset was not the expected one; nothing was committed."""

    def __init__(self, text: str, current: dict[Partition, int | None]) -> None:
        super().__init__(text)
        self.current = current
        """The offset of each partition of the request when the condition was looked at; None without a commit."""


class CommitRefusedError(PeerError):
    """The coordinator refused the whole commit, with this error code of Kafka's; nothing was committed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class OutcomeUnknownError(PeerError):
    """The connection was lost before the answer, or the coordinator lost its log: the commit may have been made, or
    not. Read the offsets."""


class Change(NamedTuple):
    """One partition's condition and its new offset."""

    expected: int | None
    """The offset that must be committed now; None: there must be none."""
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConditionalCommits:
    """Commits for one group, as one of its members or (by default) for a group that has none.

    Thread safety: one thread at a time.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any] | str,
        group: str,
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`kafka`: librdkafka's settings, of which addresses (`offsets.servers` before `bootstrap.servers`), TLS and
        SASL are used; or `bootstrap.servers` alone.

        Connects with the first commit. Raises `UsageError`.
        """
        settings = {"bootstrap.servers": kafka} if isinstance(kafka, str) else for_groups(kafka)
        self._servers = addresses_of(settings)
        self._login = login_of(settings)
        self._group = group
        self._member = (generation, member_id, instance_id)
        self._timeout_s = timeout_ms / 1000
        self._connection: Link | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next commit makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit(self, changes: Mapping[Partition, Change]) -> None:
        """Commit all of `changes` durably, if the condition of each holds; else none of them.

        Raises `ConditionFailedError`, `ConditionalCommitUnsupportedError`, `CommitRefusedError`, `OutcomeUnknownError`,
        `LoginError`, and `BrokerUnavailableError` when nobody takes the commit within the timeout.
        """
        request = self._request(changes)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            response, problem = self._try(request)
            if response is not None and response.error not in _NOT_NOW:
                break
            if response is not None:
                self.close()
                problem = _NOT_NOW[response.error]
            if time.monotonic() + ASK_AGAIN_S > give_up_at:
                raise BrokerUnavailableError(
                    f"no coordinator took a commit of group {self._group!r} within {self._timeout_s:g} s ({problem}): "
                    "check the address, and that the broker runs"
                )
            time.sleep(ASK_AGAIN_S)
        if response.error == OUTCOME_UNKNOWN:
            raise OutcomeUnknownError(
                f"the coordinator of group {self._group!r} was lost, or lost its log, before the commit was durable: "
                "it may have been made, or not; read the offsets"
            )
        if response.error != 0:
            raise self._refusal(response, changes)

    def _request(self, changes: Mapping[Partition, Change]) -> bytes:
        topics: dict[str, list[Condition]] = {}
        for (topic, partition), change in changes.items():
            expected = NO_OFFSET if change.expected is None else change.expected
            row = Condition(partition, expected, change.offset, change.leader_epoch, change.metadata)
            topics.setdefault(topic, []).append(row)
        return encode_request(Request(self._group, *self._member, list(topics.items())))

    def _try(self, request: bytes) -> tuple[Response | None, str]:
        """The answer; or None, when nothing was sent, and why."""
        try:
            if self._connection is not None and self._connection.is_closed_by_peer():
                self.close()  # it was idle for long, or the broker restarted: nothing is under way on it
            if self._connection is None:
                self._connection = self._connect()
        except OSError as error:
            return None, str(error)
        if self._connection is None:
            return None, "the group has no coordinator at the moment"
        try:
            return read_response(self._connection.ask(API_KEY, VERSION, request)), ""
        except OSError as error:
            self.close()
            raise OutcomeUnknownError(
                f"the connection to the coordinator of group {self._group!r} was lost before its answer ({error}): the "
                "commit may have been made, or not; read the offsets"
            ) from error

    def _connect(self) -> Link | None:
        """A connection to the group's coordinator; None while there is none. Raises `OSError`."""
        problem: OSError | None = None
        for address in self._servers:
            try:
                with closing(self._open(address)) as bootstrap:
                    coordinator = coordinator_of(bootstrap, self._group)
                return None if coordinator is None else self._open(coordinator)
            except OSError as error:
                problem = error
        assert problem is not None
        raise problem

    def _open(self, address: tuple[str, int]) -> Link:
        """To a broker that offers conditional commits. Raises `ConditionalCommitUnsupportedError`, and `OSError`."""
        link = Link(address, self._login, self._timeout_s)
        try:
            _check_offered(link, address)
        except BaseException:
            link.close()
            raise
        return link

    def _refusal(self, response: Response, changes: Mapping[Partition, Change]) -> PeerError:
        rows = {(topic, row.partition): row for topic, some in response.topics for row in some}
        if response.error != CONDITION_FAILED:
            names = [f"{topic}-{one}" for (topic, one), row in rows.items() if row.error == response.error]
            where = f" for {', '.join(names)}" if names else ""
            return CommitRefusedError(
                f"the coordinator of group {self._group!r} refuses the commit with Kafka's error code "
                f"{response.error}{where}; nothing was committed",
                response.error,
            )
        current = {name: None if row.current == NO_OFFSET else row.current for name, row in rows.items()}
        failed = [
            f"{topic}-{one} is at {_text(current[topic, one])} where {_text(changes[topic, one].expected)} was expected"
            for (topic, one), row in rows.items()
            if row.error == CONDITION_FAILED
        ]
        text = f"group {self._group!r}: {'; '.join(failed)}; nothing was committed: read the offsets and decide anew"
        return ConditionFailedError(text, current)


def _check_offered(link: Link, address: tuple[str, int]) -> None:
    if not link.offers(API_KEY, VERSION):
        raise ConditionalCommitUnsupportedError(
            f"the broker at {address[0]}:{address[1]} does not offer conditional commits (API key {API_KEY}): only "
            "keylane's broker does; nothing was committed"
        )


def coordinator_of(link: Link, group: str) -> tuple[str, int] | None:
    """Host and port; None when there is none at the moment."""
    reader = FieldReader(link.ask(_FIND_COORDINATOR, 0, string(group)))
    try:
        error, _node_id, host, port = reader.int16(), reader.int32(), reader.string(), reader.int32()
    except FieldError as wrong:
        raise ConnectionError(f"the broker answered something else: {wrong}") from wrong
    return (host, port) if error == 0 else None


def _text(offset: int | None) -> str:
    return "no offset" if offset is None else str(offset)
