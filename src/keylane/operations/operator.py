"""`Operator`: the other end of operations: looks at a group's members, and sends them commands.

The idea: it reads the topics that members write and read, and asks no member for anything. Whether a command counts it
reads where the members do.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Self

from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.admin import RefusedError
from keylane.kafka.keyed_topic import KeyedReader, KeyedWriter
from keylane.kafka.memory_topics import COMMANDS
from keylane.operations.clock import now_ms
from keylane.operations.commands import MAC, Command, CommandLog, Once, Refusal, done_with, named
from keylane.operations.kept_topic import KeptTopic
from keylane.operations.reports import Members
from keylane.operations.results import Result
from keylane.pipeline import topics_of_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from keylane.consumer.passing import Passing
    from keylane.kafka.admin import Admin
    from keylane.kafka.membership import Replay
    from keylane.kafka.redriving import Settings
    from keylane.operations.commands import Asked

BY_HAND = "keylane records"
"""Stands in the log as the member, where an operator has edited the map of a group without any."""
POLL_S = 0.1
WRITE_S = 10.0
"""How long a command may take to be in its topic."""


class Operator:
    """Of one group. `members` is what was read so far.

    Raises `UsageError` when no member of the group has ever reported, and what `KeyedReader` and `Admin` do. Thread
    safety: one thread.
    """

    def __init__(self, kafka: Settings, group: str, token: str | None, admin: Admin) -> None:
        self.members = Members(group)
        self._kafka = kafka
        self._group = group
        self._token = token
        self._admin = admin
        self._commands_topic, reports = topics_of_operations(group)
        topics = admin.topics([reports, *([] if token is None else [self._commands_topic])])
        if reports not in topics:
            raise UsageError(
                f"the group {group!r} has no topic {reports!r}: its members report with operations=Operations(...) in "
                "the pipeline, or `keylane run --operate`"
            )
        self._log = None if token is None else CommandLog(group, token, self._admin.at_brokers.cluster_id())
        self._reports = KeyedReader(kafka, reports)
        self._commands: KeyedReader | None = None
        try:
            for entry in self._reports.to_end():
                self.members.take(entry.key, entry.value, entry.written_ms)
            if self._log is not None and self._commands_topic in topics:
                self._commands = KeyedReader(kafka, self._commands_topic)
                for entry in self._commands.to_end():
                    self._log.take(entry.key, entry.value, entry.headers.get(MAC))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reports.close()
        if self._commands is not None:
            self._commands.close()

    @property
    def commands(self) -> Sequence[Command]:
        """Those that count; none are known without a token."""
        return () if self._log is None else self._log.counted

    def check(self, asked: Asked) -> None:
        """Raises `UsageError` for what could change nothing, as far as that is known without a token, and for what the
        topic of commands would forget."""
        if self._log is not None:
            self._log.holding.check(asked)
        if not isinstance(asked, Once) and self._commands is not None:
            wrong = KeptTopic(self._admin, self._commands_topic, COMMANDS).faults()
            if wrong:
                raise UsageError(f"topic {self._commands_topic!r} would not keep it: {wrong}")

    def send(self, asked: Asked, by: str) -> Command:
        """Write a command, and see that it counts. Raises `UsageError` without a token, `PeerError` when a broker
        refuses it or another command came before it, and `BrokerUnavailableError`."""
        if self._log is None or self._token is None or self._commands is None:
            what = (
                f"topic {self._commands_topic!r} is missing: its members make it again within seconds, where they have "
                "a token"
                if self._token is not None
                else f"no member of the group {self._group!r} takes commands: give its pipeline a token"
            )
            raise UsageError(what)
        sent_ms = now_ms()
        command = Command(secrets.token_hex(8), self._group, self._log.number + 1, sent_ms, by, asked)
        value = command.value()
        refused: list[str] = []
        writer = KeyedWriter(self._kafka, self._commands_topic, refused.append)
        for old in done_with(self._log.counted, sent_ms):
            writer.write(old.id.encode(), None)
        writer.write(command.id.encode(), value, [(MAC, self._log.mac_of(value))])
        is_written = writer.flush(WRITE_S)
        if refused:
            raise PeerError(f"the command was not written to topic {self._commands_topic!r}: {refused[0]}")
        if not is_written:
            raise BrokerUnavailableError(
                f"the command was not written to topic {self._commands_topic!r} within {WRITE_S:.0f} s: it may be "
                f"still; `keylane operate log {self._group}` tells"
            )
        self._see(command)
        return command

    def _see(self, command: Command) -> None:
        """Read on up to the command."""
        assert self._log is not None
        assert self._commands is not None
        until = time.monotonic() + WRITE_S
        while time.monotonic() < until:
            for entry in self._commands.poll(POLL_S):
                match self._log.take(entry.key, entry.value, entry.headers.get(MAC)):
                    case Refusal(one, reason) if one.id == command.id:
                        raise PeerError(f"nothing was done: {reason}")
                    case Command(id=found) if found == command.id:
                        return
        raise BrokerUnavailableError(f"topic {self._commands_topic!r} was not read up to the command: look at the log")

    def wait(self, is_through: Callable[[], bool], until: float) -> bool:
        """Read what members tell until this is so, or until a time of `time.monotonic`; whether it is."""
        while not (through := is_through()) and time.monotonic() < until:
            for entry in self._reports.poll(POLL_S):
                self.members.take(entry.key, entry.value, entry.written_ms)
        return through

    def results_of(self, command: Command) -> dict[str, Result]:
        """What members have answered so far, by name."""
        return self.members.results.get(command.id, {})


def note(kafka: Settings, admin: Admin, group: str, asked: Passing | Replay, by: str) -> bool:
    """Let the group's log of commands have what an operator has done without its members; returns whether it has. A
    group that was never operated has none. Raises what `Admin` does, and nothing for a log that is refused."""
    _, reports = topics_of_operations(group)
    try:
        if reports not in admin.topics([reports]):
            return False
    except RefusedError:
        return False
    at_ms = now_ms()
    command = Command(secrets.token_hex(8), group, 0, at_ms, by, asked)
    result = Result.of(command, BY_HAND, "done", at_ms, records=tuple(map(named, asked.records)))
    refused: list[str] = []
    writer = KeyedWriter(kafka, reports, refused.append)
    writer.write(result.key, result.value(group))
    return writer.flush(WRITE_S) and not refused
