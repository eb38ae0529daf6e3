"""`BudgetClient`: one member's end of a budget. It reads the topic, folds it, and writes what its purse asks for.

The idea: reading is all that it takes to know what one was granted. One thread reads; whoever spends writes the next
ask on its own thread, and nobody waits for a broker.
"""

from __future__ import annotations

import secrets
import threading
from time import monotonic
from typing import TYPE_CHECKING

from keylane.budgets.entries import (
    MOST_WAIT_MS,
    Ask,
    Cooldown,
    Hold,
    Return,
    Settlement,
    UnreadableEntryError,
    decode,
    encode,
    limit_of,
)
from keylane.budgets.line import Line, Placed
from keylane.budgets.purse import Purse
from keylane.budgets.running import Running
from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.keyed_topic import KeyedReader, KeyedWriter
from keylane.kafka.memory_topics import BUDGETS, faults
from keylane.limits import MOST_AMOUNT
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from types import TracebackType

    from keylane.budgets.entries import AnyEntry
    from keylane.budgets.line import Level
    from keylane.budgets.running import Wish
    from keylane.kafka.keyed_topic import Entry
    from keylane.kafka.redriving import Settings
    from keylane.limits import Budget

logger = logger_of("keylane.budgets")

TAIL = 8_192
"""Records that are read at the start: those of a line's longest wait, at a dozen a second."""

ANSWER_MS = 60_000
"""How long a broker may take to tell of the topic: others have answered just before."""

TICK_S = 0.05
"""How often leases are looked at while something was granted, or is asked for."""
IDLE_S = 0.5
FLUSH_S = 2.0
"""How long the end waits until what is given back is written."""
KEEP_S = 5.0
"""How long to wait before a topic that cannot be read is read again."""


class BudgetClient:
    """Of one process and budget. `begin`, then spend, then `close`.

    Raises `UsageError` for a topic that no budget can stand on, and that this member may not make. Thread safety: any
    thread.
    """

    def __init__(self, kafka: Settings, budget: Budget, group: str = "") -> None:
        self.budget = budget
        self._kafka = kafka
        self._topic = budget.topic
        self._group = group[:100] if group.isprintable() else ""
        self._member = secrets.token_hex(8)
        self._limits = tuple(map(limit_of, budget.limits))
        self._lock = threading.Lock()
        """Guards line, purse, what runs, and the order of what is written."""
        self._line = Line()
        self._purse = Purse(budget, monotonic())
        self._running = None if budget.at_once is None else Running(budget.at_once)
        self._seq = -1
        self._reader: KeyedReader | None = None
        self._writer: KeyedWriter | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"keylane-budget-{budget.name}", daemon=True)
        self._look_at = 0.0
        self._is_used_up = False
        self._cooled_s = 0.0
        """When the last cool-down was read."""
        self._told: set[str] = set()

    def begin(self) -> None:
        """Make the topic if it is missing, check it, and read its end."""
        self._read_end()
        self._writer = KeyedWriter(self._kafka, self._topic, self._not_written)
        self._thread.start()

    def _read_end(self) -> None:
        _see_to_topic(self._kafka, self._topic)
        self._close_reader()
        self._reader = KeyedReader(self._kafka, self._topic)
        line = Line.begin(placed(self._reader.to_end(TAIL), self._tell))
        with self._lock:
            self._line = line
            self._purse.lose_ask()
            if self._running is not None:
                self._running.lose_ask()
                self._running.read(line.slots.share_of(self._member), now := monotonic())
                self._running.pause(now + line.cool_ns / 1e9)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def __enter__(self) -> BudgetClient:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is left. May be called again."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        writer, self._writer = self._writer, None
        if writer is not None:
            with self._lock:
                self._write_back(writer, monotonic(), all_of_it=True)
                if self._running is not None and (wish := self._running.last()) is not None:
                    writer.write(self._member.encode(), encode(self._hold(wish)))
            writer.flush(FLUSH_S)
        self._close_reader()

    # --- spending ---

    def room(self, now: float) -> int:
        """About how many may start."""
        with self._lock:
            room = self._purse.room(now)
            return room if self._running is None else min(room, self._running.room(now))

    def due(self, now: float) -> float:
        """Something waits, and there is no room: when to look again."""
        with self._lock:
            if self._running is not None and not self._running.room(now):
                return self._lack_slot(self._running, now)
            return self._purse.due()

    def _lack_slot(self, running: Running, now: float) -> float:
        later = running.lack(now)
        self._write_hold(now)
        return later

    def spend(self, who: Hashable, amounts: Mapping[str, int], now: float, *, is_attempt: bool = False) -> float | None:
        """Spend it: None, and `end` says when what it is for has ended; or when to come again. `who` lacks it until
        then: of those that lack something the first comes first. Attempts of records are the calls at once."""
        with self._lock:
            running = self._running if is_attempt else None
            if running is not None and not running.room(now):
                return self._lack_slot(running, now)
            later = self._purse.spend(who, amounts, now)
            if running is not None and later is None:
                running.begin(who, now)
            self._write_ask(now)
            return later

    def end(self, who: Hashable, *, has_run: bool) -> None:
        """What `who` spent for has ended; where it has not run, what it spent is spent by others, or given back."""
        with self._lock:
            self._purse.end(who, has_run=has_run)
            if self._running is not None:
                self._running.end(who)

    def settle(self, amounts: Mapping[str, int]) -> None:
        """So much more was spent than asked for."""
        with self._lock:
            self._purse.owe(amounts)

    def cool_down(self, retry_after_ms: int, since: float) -> None:
        """The service wants all to wait so long: it has told so to a call that began at `since`. What began before the
        last cool-down was known here says nothing new."""
        with self._lock:
            if since < self._cooled_s:
                return
            wait_ms = max(0, min(retry_after_ms, MOST_WAIT_MS))
            entry = Cooldown(
                member=self._member,
                seq=self._next_seq(),
                state=self._line.state(),
                wait_ms=wait_ms,
                began=self._line.offset,
            )
            self._write(entry)

    def used_up(self) -> tuple[str, float] | None:
        """The unit whose cap is used up, and until when, on the monotonic clock."""
        with self._lock:
            return self._purse.used_up

    def levels(self) -> list[Level]:
        """How each limit stands at the last record."""
        with self._lock:
            return self._line.levels()

    # --- writing, under the lock ---

    def _write_ask(self, now: float) -> None:
        amounts = self._purse.ask(self._seq + 1, now)
        if amounts is None:
            return
        self._write(
            Ask(
                member=self._member,
                seq=self._next_seq(),
                state=self._line.state(),
                group=self._group,
                limits=self._limits,
                amounts=amounts,
                lease_ms=self.budget.lease_ms,
            )
        )

    def _write_hold(self, now: float) -> None:
        if self._running is not None and (wish := self._running.ask(self._seq + 1, now)) is not None:
            self._write(self._hold(wish))

    def _hold(self, wish: Wish) -> Hold:
        at_once = self.budget.at_once
        assert at_once is not None, "there is something to hold"
        return Hold(
            member=self._member,
            seq=self._next_seq(),
            state=self._line.state(),
            group=self._group,
            count=at_once.count,
            wants=wish.wants,
            keeps=wish.keeps,
            lease_ms=at_once.lease_ms,
        )

    def _write_back(self, writer: KeyedWriter, now: float, *, all_of_it: bool = False) -> None:
        for given in self._purse.give_back(now, all_of_it=all_of_it):
            entry = Return(
                member=self._member,
                seq=self._next_seq(),
                state=self._line.state(),
                of=given.of,
                amounts=given.amounts,
            )
            writer.write(self._member.encode(), encode(entry))
        if owed := self._purse.pop_owed():
            amounts = {unit: min(amount, MOST_AMOUNT) for unit, amount in owed.items()}
            settlement = Settlement(
                member=self._member,
                seq=self._next_seq(),
                state=self._line.state(),
                limits=self._limits,
                amounts=amounts,
            )
            writer.write(self._member.encode(), encode(settlement))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _write(self, entry: AnyEntry) -> None:
        if self._writer is not None:
            self._writer.write(self._member.encode(), encode(entry))

    def _not_written(self, why: str) -> None:
        self._tell("written", f"its records are not written: {why}")

    def _tell(self, what: str, text: str) -> None:
        """Once: what is refused is refused again."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("budget %r: %s", self.budget.name, text)

    def _tell_used_up(self, now: float) -> None:
        """Once a day: a line as a breaker's."""
        used_up = self._purse.used_up
        if used_up is None:
            self._is_used_up = False
        elif not self._is_used_up:
            self._is_used_up = True
            unit, until_s = used_up
            left = f"{max(0.0, until_s - now) / 3600:.1f} h"
            logger.warning("budget %r: the day's %s are used up: its records wait %s", self.budget.name, unit, left)

    # --- reading ---

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                if self._reader is None or self._reader.is_another or self._is_in_doubt():
                    self._read_end()  # it was deleted, made anew, or put back
                self._turn()
            except (PeerError, UsageError) as error:
                self._tell("read", f"its topic cannot be read: {error}")
                self._close_reader()
                self._closing.wait(KEEP_S)

    def _is_in_doubt(self) -> bool:
        """Whether it is time to look at the topic, as nothing that is written comes back: clients tell nobody that a
        topic was deleted."""
        now = monotonic()
        is_away = self._purse.is_away or (self._running is not None and self._running.is_away(now))
        if not is_away or now < self._look_at:
            return False
        self._look_at = now + KEEP_S
        return True

    def _turn(self) -> None:
        reader, writer = self._reader, self._writer
        assert reader is not None, "it has begun"
        assert writer is not None, "it has begun"
        with self._lock:
            is_busy = self._purse.is_busy or (self._running is not None and self._running.is_busy)
            wait_s = TICK_S if is_busy else IDLE_S
        entries = reader.poll(wait_s)
        now = monotonic()
        with self._lock:
            for record in placed(entries, self._tell):
                self._fold(record, now)
            self._write_back(writer, now)
            self._write_ask(now)
            self._write_hold(now)

    def _fold(self, record: Placed, now: float) -> None:
        answer = self._line.fold(record)
        entry = record.entry
        if self._running is not None:
            own = entry.seq if isinstance(entry, Hold) and entry.member == self._member else None
            self._running.read(self._line.slots.share_of(self._member), now, own)
            self._running.pause(now + self._line.cool_ns / 1e9)
        if isinstance(entry, Cooldown) and self._line.was_cooled_by(record):
            self._cooled_s = now
            self._purse.void()
            logger.info("budget %r: the service asks all to wait %.1f s", self.budget.name, entry.wait_ms / 1000)
        elif isinstance(entry, Ask) and entry.member == self._member:
            self._purse.answered(entry.seq, answer, now)
            self._tell_used_up(now)


def placed(entries: Iterable[Entry], tell: Callable[[str, str], None]) -> list[Placed]:
    """Records of a budget's topic. Those of another kind of time are none: their writers say what time it is. `tell` is
    given what is wrong, and a word for its kind."""
    found = []
    for one in entries:
        if not one.has_append_time:
            tell("time", "its topic was altered: set message.timestamp.type=LogAppendTime")
            continue
        entry = None
        try:
            entry = decode(one.value)
        except UnreadableEntryError as error:
            tell("unreadable", f"the record at offset {one.offset} is passed over: {error}")
        found.append(Placed(one.offset, one.leader_epoch, one.written_ms, entry))
    return found


def _see_to_topic(kafka: Settings, topic: str) -> None:
    admin = Admin(kafka, timeout_ms=ANSWER_MS)
    how = " ".join(f"--config {name}={value}" for name, value in BUDGETS.config.items())
    try:
        admin.create_topics({topic: 1}, replication_factor=-1, config=BUDGETS.config)
        wrong = faults(BUDGETS, admin.topic_settings(topic), admin.topics([topic]).get(topic, 1))
    except BrokerUnavailableError:
        raise
    except PeerError as error:
        raise UsageError(
            f"the budget's topic {topic!r} cannot be had: {error}; make it with `keylane topics create {topic} "
            f"--partitions 1 {how}`, and let this user describe, read and write it"
        ) from None
    if wrong:
        raise UsageError(f"the budget's topic {topic!r} is none that a budget can stand on: {'; '.join(wrong)}")
