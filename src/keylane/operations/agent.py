"""`Agent`: a member's end of operations: it reports, and carries commands out, on threads of its own.

The idea: one thread reads commands and does one after the other, others look at the work and report. Whatever happens
to them the consumer goes on: what a broker refuses is logged once, and left at that.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from keylane.consumer.passing import Passing
from keylane.consumer.settings import Settings
from keylane.consumer.work import to_dict
from keylane.errors import BrokerUnavailableError, KeylaneError, PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.keyed_topic import KeyedReader, KeyedWriter
from keylane.kafka.membership import Replay, Seek
from keylane.kafka.memory_topics import COMMANDS, REPORTS
from keylane.operations.clock import now_ms
from keylane.operations.commands import AGAIN, LATE_MS, MAC, VERSION, Command, CommandLog, Holding, Refusal, named
from keylane.operations.kept_topic import KeptTopic
from keylane.operations.reports import key_of, value_of
from keylane.operations.results import Result
from keylane.options import DeadLetter
from keylane.pipeline import topics_of_operations
from keylane.telling import logger_of
from keylane.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.consumer.passing import Told
    from keylane.consumer.settings import Change
    from keylane.consumer.snapshot import Snapshot
    from keylane.consumer.work import Work, WorkDict, WorkRecord
    from keylane.kafka.keyed_topic import Entry
    from keylane.operations.commands import Name, Said
    from keylane.operations.reports import Report, Runs
    from keylane.operations.results import State
    from keylane.pipeline import Operations, Pipeline

logger = logger_of("keylane.operations")

POLL_S = 0.2
"""How long a look for commands waits; closing waits as long."""
FLUSH_S = 2.0
"""How long the end waits for the last word to be written."""

KEEP_S = 5.0
"""How often it is looked whether the topics are there still."""
FAULTS_S = 60.0
"""How often it is looked whether they are what they have to be."""


class Operated(Protocol):
    """What is operated: a consumer in this process, or a query of lanes."""

    runs: Runs
    spark_ui: str | None
    """The address of Spark's own pages; None where there are none."""

    def snapshot(self) -> Snapshot: ...
    def lanes(self) -> list[Said]: ...
    def work(self) -> dict[int | None, Work]:
        """By lane; None is the process itself. Raises `KeylaneError`."""

    def change(self, change: Change) -> None:
        """Returns once it holds. Raises `KeylaneError`."""

    def seek(self, seek: Seek) -> Sequence[Name]:
        """Returns where it was done, which is where it had partitions. Raises `KeylaneError`."""

    def about(self, asked: Passing | Replay) -> Told:
        """Do this with single records. Returns what became of the records of its partitions. Raises `KeylaneError`."""


class Agent:
    """Of one member of a pipeline's group. `begin`, then `start`, then `close`; `close` also without the others.

    Thread safety: one thread calls it.
    """

    def __init__(self, pipeline: Pipeline, options: Operations, client_id: str | None = None) -> None:
        self._pipeline = pipeline
        self._group = pipeline.group_id
        self._client_id = client_id
        self._interval_ms = options.report_interval_ms
        self._shows_keys = options.show_keys
        given_up = pipeline.on_exhausted
        self._dead_letter_topic = given_up.topic if isinstance(given_up, DeadLetter) else None
        self._work: dict[int | None, Work] = {}
        """As it was last told."""
        self._commands_topic, self._reports_topic = topics_of_operations(self._group)
        self._token = options.token
        self._log: CommandLog | None = None
        """Once it has begun; None without a token."""
        self._member = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._started_ms = now_ms()
        self._topics: list[KeptTopic] = []
        """Those that are there."""
        self._look_at = self._check_at = 0.0
        self._reader: KeyedReader | None = None
        self._writer: KeyedWriter | None = None
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._report_now = threading.Event()
        self._told: set[str] = set()
        self._done = 0
        """The number of the last command that is through: what a report says after that has seen it."""

    def begin(self) -> Settings:
        """Connect, make the topics that are missing, and read what holds for a member that starts now.

        Raises `BrokerUnavailableError` when no broker answers: a group that is paused does not start because of that.
        """
        try:
            return self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Settings:
        admin = Admin(self._pipeline.kafka)
        if self._token is not None:
            self._log = CommandLog(self._group, self._token, admin.at_brokers.cluster_id())
        if self._has_topic(KeptTopic(admin, self._reports_topic, REPORTS)):
            self._writer = KeyedWriter(self._pipeline.kafka, self._reports_topic, self._not_written)
        if self._log is not None and self._has_topic(KeptTopic(admin, self._commands_topic, COMMANDS)):
            self._reader = KeyedReader(self._pipeline.kafka, self._commands_topic)
            try:
                for entry in self._reader.to_end():
                    self._take(entry)
            except BrokerUnavailableError:
                raise
            except PeerError as error:
                self._no_commands(error)
        self._check()
        return Settings() if self._log is None else self._log.holding.of(self._pipeline)

    def start(self, operated: Operated) -> None:
        """Report, and carry commands out, until `close`."""
        if self._closing.is_set():  # what is operated has ended already
            return
        for run, name in ((self._look, "work"), (self._report, "reports"), (self._obey, "commands")):
            thread = threading.Thread(
                target=self._guarded, args=(run, operated), name=f"keylane-operations-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """The member ends, and says so. May be called again."""
        self._closing.set()
        self._report_now.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.write(key_of(self._member), None)
            if not writer.flush(FLUSH_S):
                logger.warning("operations: the end of member %s was not written: no broker took it", self._member)
        self._close_reader()

    # --- what a broker may refuse ---

    def _has_topic(self, topic: KeptTopic) -> bool:
        """Whether it is there, or is now."""
        try:
            topic.make()
        except BrokerUnavailableError:
            raise
        except PeerError as error:
            self._tell(topic.name, f"{error}; make it with `{topic.how_to_make}`")
            return False
        self._topics.append(topic)
        return True

    def _check(self) -> None:
        """Tell what is wrong with the topics."""
        self._check_at = monotonic() + FAULTS_S
        for topic in self._topics:
            if wrong := topic.faults():
                self._tell(f"{topic.name}: {wrong}", f"topic {topic.name!r}: {wrong}", "")

    def _keep(self) -> None:
        """Make topics again that were deleted, with what holds, and look at what the others are."""
        if monotonic() < self._look_at:
            return
        try:
            for topic in self._topics:
                reader = self._reader if topic.name == self._commands_topic else None
                was_put_back = reader is not None and reader.is_another
                if topic.is_another(0 if reader is None else reader.position) or was_put_back:
                    self._restore(topic)
            if monotonic() >= self._check_at:
                self._check()
        except PeerError as error:  # it passes, or is told where a topic is used
            logger.info("operations of group %r: %s", self._group, error)
        self._look_at = monotonic() + KEEP_S

    def _restore(self, topic: KeptTopic) -> None:
        """Write again into a topic what its members go by."""
        held = (
            self._log.to_write_again(now_ms()) if self._log is not None and topic.name == self._commands_topic else []
        )
        logger.warning(
            "operations of group %r: topic %r was deleted, or put back to an older copy%s",
            self._group,
            topic.name,
            f": {len(held)} commands are written into it again" if held else "",
        )
        if topic.name != self._commands_topic:
            return
        if held:
            writer = KeyedWriter(self._pipeline.kafka, topic.name, lambda why: self._tell(topic.name, why))
            for key, value, mac in held:
                writer.write(key, value, [(MAC, mac), (AGAIN, b"")])
            writer.flush(FLUSH_S)
        self._close_reader()
        self._told.discard("commands")
        self._reader = KeyedReader(self._pipeline.kafka, topic.name)

    def _not_written(self, why: str) -> None:
        self._tell("reports", f"reports are not written: {why}")

    def _no_commands(self, error: PeerError) -> None:
        self._tell("commands", f"commands are not read: {error}")
        self._close_reader()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _tell(self, what: str, text: str, then: str = "; the member goes on without") -> None:
        """Once: what is refused is refused again."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("operations of group %r: %s%s", self._group, text, then)

    def _guarded(self, run: Callable[[Operated], None], operated: Operated) -> None:
        try:
            run(operated)
        except Exception:  # the consumer goes on
            logger.exception("operations of group %r ended by a defect of keylane's", self._group)

    # --- reports ---

    def _report(self, operated: Operated) -> None:
        writer = self._writer
        while writer is not None and not self._closing.is_set():
            self._report_now.clear()
            writer.write(key_of(self._member), value_of(self._made(operated)))
            self._report_now.wait(self._interval_ms / 1000)

    def _made(self, operated: Operated) -> Report:
        log, done = self._log, self._done
        return {
            "version": VERSION,
            "group": self._group,
            "member": self._member,
            "runs": operated.runs,
            "client_id": self._client_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "keylane": __version__,
            "started_ms": self._started_ms,
            "reported_ms": now_ms(),
            "interval_ms": self._interval_ms,
            "takes_commands": self._reader is not None,
            "command": done,
            "holding": (Holding() if log is None else log.holding).to_dict(),
            "snapshot": operated.snapshot().to_dict(),
            "lanes": operated.lanes(),
            "spark_ui": operated.spark_ui,
            "dead_letter_topic": self._dead_letter_topic,
            "in_hand": self._told_of(lambda work: work.in_hand),
            "waiting": self._told_of(lambda work: work.waiting),
            "queues": self._told_of(lambda work: work.queues),
        }

    def _told_of(self, kind: Callable[[Work], Iterable[WorkRecord]]) -> list[WorkDict]:
        return [
            to_dict(record, lane, shows_keys=self._shows_keys)
            for lane, work in self._work.items()
            for record in kind(work)
        ]

    def _look(self, operated: Operated) -> None:
        """Ask for what is in hand: a lane that hangs answers late, and nobody else waits for it."""
        while not self._closing.is_set():
            try:
                self._work = operated.work()
            except KeylaneError as error:
                self._work = {}
                logger.info("operations of group %r: %s", self._group, error)
            self._closing.wait(self._interval_ms / 1000)

    # --- commands ---

    def _take(self, entry: Entry) -> Command | Refusal | None:
        assert self._log is not None, "commands without a token"
        return self._log.take(entry.key, entry.value, entry.headers.get(MAC))

    def _obey(self, operated: Operated) -> None:
        while not self._closing.is_set():
            self._keep()
            if self._reader is None:
                self._closing.wait(POLL_S)
                continue
            try:
                entries = self._reader.poll(POLL_S)
            except PeerError as error:
                self._no_commands(error)
                continue
            for entry in entries:
                match self._take(entry):
                    case Refusal(command, reason) if AGAIN not in entry.headers:
                        self._answer(command, "refused", reason)
                    case Command() as command:
                        self._carry_out(command, operated)

    def _carry_out(self, command: Command, operated: Operated) -> None:
        if command.is_late(now_ms()):
            late = f"it came more than {LATE_MS // 1000} s after it was sent, by the clock of {self._member}"
            self._answer(command, "refused", late)
            self._done = command.number
            return
        logger.info("operations of group %r: %s by %s", self._group, command.verb, command.by)
        self._answer(command, "accepted")
        done: tuple[Name, ...] | None = None
        records: tuple[str, ...] | None = None
        not_done = ""
        try:
            if isinstance(command.asked, Passing | Replay):
                told = operated.about(command.asked)
                records = tuple(named(one) for one, why in told.items() if not why)
                not_done = "; ".join(f"{named(one)}: {why}" for one, why in told.items() if why)
            elif isinstance(command.asked, Seek):
                done = tuple(operated.seek(command.asked))
            else:
                assert self._log is not None, "commands without a token"
                operated.change(self._log.holding.change(command.asked, self._pipeline))
        except KeylaneError as error:
            self._answer(command, "failed", " ".join(str(error).split()))
        else:
            self._answer(command, "failed" if not_done else "done", not_done, done, records)
        self._done = command.number
        self._report_now.set()

    def _answer(
        self,
        command: Command,
        state: State,
        text: str = "",
        partitions: tuple[Name, ...] | None = None,
        records: tuple[str, ...] | None = None,
    ) -> None:
        if self._writer is not None:
            result = Result.of(command, self._member, state, now_ms(), text, partitions, records)
            self._writer.write(result.key, result.value(self._group))
