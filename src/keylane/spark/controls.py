"""What users ask of a query's lanes while they run: what the driver remembers of it, and what goes to which lane. Pure.

The idea: what holds from now on (`Settings`: pauses, bounds) is told to every lane that runs, and given to each lane
that starts later; so it holds whatever lanes do and wherever partitions go. A seek is done once: each partition is
sought by the one lane that says it has it now, and by the next one only if that one did not have it any more, or went.

A call ends when every lane that it concerns has answered. A lane that goes meanwhile holds up nobody: nothing of it
runs, and its successor starts with what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.passing import Passing
from keylane.consumer.settings import Change, Settings
from keylane.errors import PeerError
from keylane.kafka.membership import Replay, Seek

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.consumer.intake import Liveness
    from keylane.consumer.passing import Told
    from keylane.consumer.work import Work

Name = tuple[str, int]
"""Topic and partition."""

ANSWER_S = 30.0
"""A lane answers in a fraction of a second. One that does not is starved or frozen, and given up before long."""

MOST_LOSSES = 2
"""Lanes that may end in the middle of one seek: one may be killed, but a seek that ends lanes must not end them all."""


@dataclass(frozen=True, slots=True)
class TellLiveness:
    """Say how you stay a member; of the lanes that have one of these partitions (None: of all lanes)."""

    names: tuple[Name, ...] | None = None


@dataclass(frozen=True, slots=True)
class TellWork:
    """Say what you have in hand, and what waits."""


Request: TypeAlias = Change | Seek | Passing | Replay | TellLiveness | TellWork
Value: TypeAlias = "tuple[Name, ...] | Liveness | Work | Told | None"
"""Of a lane's answer: where a seek was done, how it stays a member, what it has in hand, what became of records."""


Lane = TypeVar("Lane")
"""One process of a lane, as whoever uses this knows it: anything that can be a key, and whose text names it."""


@dataclass(frozen=True, slots=True)
class Send(Generic[Lane]):
    """Ask this lane; its answer has this number."""

    lane: Lane
    number: int
    what: Request


@dataclass(frozen=True, slots=True)
class Done(Generic[Lane]):
    """The call of this number is through."""

    number: int
    values: Mapping[Lane, Value] = field(default_factory=dict)
    """What lanes answered."""
    error: BaseException | None = None


Effect: TypeAlias = Send[Lane] | Done[Lane]


@dataclass(slots=True)
class _Call(Generic[Lane]):
    number: int
    what: Request
    due: float
    wait_s: float
    waits_for: set[Lane] = field(default_factory=set)
    values: dict[Lane, Value] = field(default_factory=dict)
    left: dict[Name, Lane | None] = field(default_factory=dict)
    """Of a seek: partitions that are not there yet, and who is at them."""
    tried: set[Name] = field(default_factory=set)
    """Of those, which a lane was at."""
    losses: int = 0
    """Lanes that ended in the middle of it."""

    @property
    def is_through(self) -> bool:
        return not self.waits_for and not self.left

    @property
    def overdue(self) -> PeerError:
        if isinstance(self.what, Seek):
            left = ", ".join(f"{topic}-{partition} ({_at(lane)})" for (topic, partition), lane in self.left.items())
            return PeerError(
                f"seek: not done in time: {left}. A partition that no lane has may be another member's, or its topic "
                "was deleted; what a lane is at may still be done: look where the group stands, and seek again"
            )
        name, lanes = _NAMES[type(self.what)], ", ".join(sorted(map(str, self.waits_for)))
        after = "; what starts in their place begins with it"
        if isinstance(self.what, TellLiveness | TellWork):
            after = ""
        elif isinstance(self.what, Passing | Replay):
            after = "; `keylane records show` says where the records stand"
        return PeerError(f"{name}: no answer within {self.wait_s:.0f} s from {lanes}{after}")


_NAMES = {
    Pause: "pause",
    Resume: "resume",
    Adjust: "adjust",
    RuleKeys: "rules by key",
    TellLiveness: "liveness",
    TellWork: "work",
    Passing: "single records",
    Replay: "single records",
}


def _at(lane: object) -> str:
    return "no lane has it" if lane is None else f"{lane} is at it"


class Controls(Generic[Lane]):
    """The calls that are under way, and what holds. Thread safety: one thread at a time."""

    def __init__(self, known: Iterable[Name], revoke_timeout_s: float, settings: Settings | None = None) -> None:
        """`known`: partitions that there are; a seek may take `revoke_timeout_s` for records in handlers. `settings`
        hold from the start."""
        self.settings = settings or Settings()
        self._known = set(known)
        self._seek_s = revoke_timeout_s + ANSWER_S
        self._calls: dict[int, _Call[Lane]] = {}
        self._has: dict[Lane, frozenset[Name]] = {}
        """The partitions of each lane that runs, as it said last."""
        self._number = 0

    def ask(self, what: Request, now: float) -> tuple[int, list[Effect[Lane]]]:
        """A user's call: its number, and what follows at once. The lanes that `started` are concerned."""
        self._number += 1
        wait_s = self._seek_s if isinstance(what, Seek | Replay) else ANSWER_S
        call = self._calls[self._number] = _Call[Lane](self._number, what, now + wait_s, wait_s)
        if isinstance(what, Seek):
            names = what.targets if what.others is None else {*what.targets, *self._known}
            call.left = dict.fromkeys(sorted(names))
        elif isinstance(what, TellLiveness):
            wanted = what.names
            call.waits_for = {one for one, has in self._has.items() if wanted is None or has.intersection(wanted)}
        elif isinstance(what, Passing | Replay):
            of = {(topic, partition) for topic, partition, _ in what.records}
            call.waits_for = {one for one, has in self._has.items() if of.intersection(has)}
        elif isinstance(what, TellWork):
            call.waits_for = set(self._has)
        else:
            self.settings = self.settings.after(what)
            call.waits_for = set(self._has)
        sends: list[Effect[Lane]] = [Send(lane, call.number, what) for lane in call.waits_for]
        return call.number, sends + self._ended(call)

    def started(self, lane: Lane) -> tuple[Change, ...]:
        """A lane is let go: what it has to begin with."""
        self._has[lane] = frozenset()
        return self.settings.changes

    @property
    def is_asked(self) -> bool:
        """Whether a call is not through: each report may carry it on."""
        return bool(self._calls)

    def reported(self, lane: Lane, names: Iterable[Name]) -> list[Effect[Lane]]:
        """A lane says which partitions it has now: it seeks in those that wait for that."""
        if lane not in self._has:
            return []
        self._has[lane] = has = frozenset(names)
        self._known |= has
        effects: list[Effect[Lane]] = []
        sought: set[Name] = set()
        for call in self._calls.values():  # of two seeks in one partition the later one is the last
            waits = [name for name, at in call.left.items() if at is None and name in has and name not in sought]
            sought.update(call.left)
            is_at_it = lane in call.left.values()  # what it has got since comes after its answer
            if waits and isinstance(call.what, Seek) and not is_at_it:
                call.left.update(dict.fromkeys(waits, lane))
                call.tried.update(waits)
                targets = {name: call.what.targets.get(name, call.what.others) for name in waits}
                effects.append(
                    Send(lane, call.number, Seek({name: one for name, one in targets.items() if one is not None}))
                )
        return effects

    def answered(
        self, lane: Lane, number: int, value: Value = None, error: BaseException | None = None
    ) -> list[Effect[Lane]]:
        """A lane did what it was asked for, or could not."""
        call = self._calls.get(number)
        if call is None:
            return []  # it was given up
        if error is not None:
            del self._calls[number]
            return [Done(number, error=error)]
        if isinstance(call.what, Seek):
            done = value if isinstance(value, tuple) else ()
            call.left = {
                name: None if at == lane else at for name, at in call.left.items() if not (at == lane and name in done)
            }
        elif lane in call.waits_for:
            call.waits_for.discard(lane)
            call.values[lane] = value
        return self._ended(call)

    def went(self, lane: Lane) -> list[Effect[Lane]]:
        """A lane's process has ended. What it was to seek in is the next one's."""
        self._has.pop(lane, None)
        effects: list[Effect[Lane]] = []
        for call in list(self._calls.values()):
            call.waits_for.discard(lane)
            lost = [name for name, at in call.left.items() if at == lane]
            call.left.update(dict.fromkeys(lost))
            call.losses += bool(lost)
            if call.losses < MOST_LOSSES:
                effects += self._ended(call)
            else:
                del self._calls[call.number]
                error = PeerError(
                    f"seek: {call.losses} lanes ended in the middle of it, the last one {lane} at "
                    f"{', '.join(f'{topic}-{partition}' for topic, partition in lost)}: the log says why"
                )
                effects.append(Done(call.number, error=error))
        return effects

    @property
    def next_due(self) -> float | None:
        """When a call has taken too long."""
        return min((call.due for call in self._calls.values()), default=None)

    def expire(self, now: float) -> list[Effect[Lane]]:
        """Ends the calls that have taken too long. A seek in all partitions is done when those are left alone that no
        lane had meanwhile: other members of the group have them."""
        late = [call for call in self._calls.values() if now >= call.due]
        if not late:
            return []
        ours = {name for has in self._has.values() for name in has}
        for call in late:
            del self._calls[call.number]
            if isinstance(call.what, Seek):
                expected = ours | call.tried | set(call.what.targets)
                call.left = {name: at for name, at in call.left.items() if name in expected}
        return [Done(call.number, call.values, None if call.is_through else call.overdue) for call in late]

    def _ended(self, call: _Call[Lane]) -> list[Effect[Lane]]:
        if not call.is_through:
            return []
        del self._calls[call.number]
        return [Done(call.number, call.values)]
