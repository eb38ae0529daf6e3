"""`Breakers`: which services are down, so that what would call them is held and not used up.

The idea: a service is down once so many calls in a row have failed, or once an item is at its last attempt and no call
has succeeded since its first. While it is down one call at a time goes to it, a probe; what it fails with is nobody's
attempt. The first probe that succeeds says that it is back. A success that began before it was down says nothing, and
nor does a failure that began before it was back: that one is nobody's attempt, too.

    closed ── failures in a row, or a last attempt without any success since the first ──> open
    open ── every probe_interval_ms one call, a probe: it fails ──> open
    open ── a call that began since then succeeds ──> closed

Pure: time is passed in. Thread safety: none; its owner is the flow's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import OutageError, PeerError, UsageError
from keylane.flow.items import Batch
from keylane.flow.outcomes import Failure, Later, NotRun
from keylane.flow.rates import UNLIMITED
from keylane.foreign_errors import is_one_of, short_class_of
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.flow.items import Carried, Unit
    from keylane.options import Breaker

FORGET_AT = 10_000
"""Targets from which on those that are well are forgotten."""

AFTER_OTHERS = 0.5
"""What failed while its target is down comes so much of a probe's interval after the next probe is due: another item
goes first, where there is one, so that one which fails by its own fault keeps nobody waiting."""


class OpenBreaker(NamedTuple):
    """A service that is down."""

    target: str
    """What `Breaker.target` calls it; empty without one."""
    open_ms: int
    """For how long."""
    probe_in_ms: int | None = None
    """Until the next call may go to it. Older members do not tell."""

    def __str__(self) -> str:
        service = f"the service {self.target}" if self.target else "the service"
        probe = "" if self.probe_in_ms is None else f", next probe in {self.probe_in_ms / 1000:.1f} s"
        return f"{service} has been down for {self.open_ms / 1000:.0f} s{probe}"


def longest(many: Iterable[OpenBreaker]) -> tuple[OpenBreaker, ...]:
    """Of several consumers, each service as the first of them has found it."""
    found: dict[str, OpenBreaker] = {}
    for one in many:
        if one.target not in found or one.open_ms > found[one.target].open_ms:
            found[one.target] = one
    return tuple(found[target] for target in sorted(found))


class _Target:
    """One service."""

    __slots__ = ("back_s", "in_a_row", "opened_s", "probe_s", "succeeded_s")

    def __init__(self) -> None:
        self.in_a_row = 0
        """Failures since the last success."""
        self.opened_s: float | None = None
        """Since when it is down; None while it is not."""
        self.probe_s = 0.0
        """When the next probe may go, while it is down."""
        self.succeeded_s = float("-inf")
        """When a call ended well last."""
        self.back_s = float("-inf")
        """When it was seen to be back last."""

    def failed(self) -> None:
        self.in_a_row += 1

    def succeeded(self, now: float) -> None:
        """It is up."""
        if self.opened_s is not None:
            self.back_s = now
        self.opened_s = None
        self.in_a_row = 0
        self.succeeded_s = now

    def go_down(self, now: float, interval_s: float) -> None:
        self.opened_s = now
        self.probe_s = now + interval_s

    def probe(self, now: float, interval_s: float) -> None:
        self.probe_s = now + interval_s

    def probe_next(self, now: float) -> None:
        """The probe that was sent was none."""
        self.probe_s = now


class Breakers:
    """Of one flow. `tell` is given a line when a target goes down, or comes back; `view` makes of a payload what user
    code sees."""

    def __init__(self, options: Breaker, tell: Callable[[str], None], view: Callable[[Carried], Carried]) -> None:
        self._failures = options.failures
        self._errors = options.errors
        self._interval_s = options.probe_interval_ms / 1000
        self._only = "" if options.target is None else None
        """The name of the one target, where items name none."""
        self._target_of = options.target
        self._tell = tell
        self._view = view
        self._targets: dict[str, _Target] = {}

    def counts(self, error: BaseException) -> bool:
        """Whether this error says something of the service. What Kafka does not take does not."""
        return isinstance(error, OutageError) or (is_one_of(error, self._errors) and not isinstance(error, PeerError))

    def target(self, payload: Carried) -> str | UsageError:
        """Which service the item calls; an error, when the user's function gives none."""
        if self._target_of is None:
            return ""
        try:
            target: object = self._target_of(self._view(payload))
        except BaseException as raised:  # whatever it is, it must not end the loop
            return UsageError(f"the function Breaker.target raised {short_class_of(raised)}; mend it")
        if not isinstance(target, str):
            return UsageError(f"the function Breaker.target returned {kind_of(target)}: return a str")
        return target

    # --- what may start ---

    def room(self, now: float) -> int:
        """How many items may start now as far as that is known without a look at them."""
        one = None if self._only is None else self._targets.get(self._only)
        if one is None or one.opened_s is None:
            return UNLIMITED
        return 1 if now >= one.probe_s else 0

    def due(self) -> float | None:
        """When the next probe may go, where the one target of all items is down."""
        one = None if self._only is None else self._targets.get(self._only)
        return None if one is None or one.opened_s is None else one.probe_s

    def starts(self, target: str, now: float) -> float | None:
        """An item for this target is to start: None if it may, which makes it the probe of one that is down; else when
        it may try again."""
        one = self._targets.get(target)
        if one is None or one.opened_s is None:
            return None
        if now < one.probe_s:
            return one.probe_s
        one.probe(now, self._interval_s)
        return None

    def not_called(self, target: str | UsageError, since: float, now: float) -> None:
        """An item that was handed over at `since` did not call it: if it was to be a probe, another one is due."""
        one = None if isinstance(target, UsageError) else self._targets.get(target)
        if one is not None and one.opened_s is not None and since >= one.opened_s:
            one.probe_next(now)

    # --- what calls came to ---

    def heard(self, units: Iterable[Unit], now: float) -> list[Unit]:
        """The same, which were reported; what of them went well counts."""
        reported = list(units)
        for unit in reported:
            if isinstance(unit, Batch):
                ended = [(one.payload, one.outcome) for one in unit.items]
            else:
                ended = [(payload, unit.outcomes.get(index)) for index, payload in enumerate(unit.payloads)]
            for payload, outcome in ended:
                if not isinstance(outcome, Failure | NotRun | Later):
                    target = self.target(payload)
                    if not isinstance(target, UsageError):
                        self.succeeded(target, unit.since, now)
        return reported

    def succeeded(self, target: str, since: float, now: float) -> None:
        """A call that was handed over at `since` ended well."""
        one = self._of(target)
        if one.opened_s is not None:
            if since < one.opened_s:
                return
            self._tell(f"{_named(target)} is back after {now - one.opened_s:.1f} s: calls go on")
        one.succeeded(now)

    def failed(self, target: str, since: float, now: float) -> float | None:
        """A call that was handed over at `since` failed with an error that counts: when its item may try again, if its
        target is down, or was when the call began; else None."""
        one = self._of(target)
        if one.opened_s is None and since < one.back_s:
            return now
        one.failed()
        if one.opened_s is None and one.in_a_row < self._failures:
            return None
        return self._held(target, one, now)

    def exhausted(self, target: str, first_s: float, now: float) -> float | None:
        """It was the item's last attempt, and the first began at `first_s`: when it may try again, if nothing has
        succeeded since; else None."""
        one = self._of(target)
        return self._held(target, one, now) if one.succeeded_s <= first_s else None

    def _held(self, target: str, one: _Target, now: float) -> float:
        if one.opened_s is None:
            one.go_down(now, self._interval_s)
            often = f"{one.in_a_row} call{'s' if one.in_a_row != 1 else ''} in a row failed"
            self._tell(
                f"{_named(target)} is down, {often}: its items wait, and it is probed each {self._interval_s:g} s"
            )
        return max(one.probe_s, now) + AFTER_OTHERS * self._interval_s

    def _of(self, target: str) -> _Target:
        if (one := self._targets.get(target)) is None:
            if len(self._targets) >= FORGET_AT:
                self._targets = {name: known for name, known in self._targets.items() if known.in_a_row}
            one = self._targets[target] = _Target()
        return one

    def open(self, now: float) -> tuple[OpenBreaker, ...]:
        """Which are down."""
        return tuple(
            OpenBreaker(name, round((now - one.opened_s) * 1000), max(0, round((one.probe_s - now) * 1000)))
            for name, one in self._targets.items()
            if one.opened_s is not None
        )


def _named(target: str) -> str:
    return f"breaker: {target!r}" if target else "breaker: the service"
