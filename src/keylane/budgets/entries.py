"""The records of a budget's topic: `Ask`, `Return`, `Settlement`, `Cooldown`, `Hold`, as JSON.

The idea: a record says all that its reader needs to judge it. It has the limits as its writer knows them, so that
members of two releases of a program share one budget, and the state that its writer had reached, so that a member that
starts reads the end of the log alone.

Others may write to a topic: `decode` raises `UnreadableEntryError` for what is no record of a budget, and nothing else.
Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

from keylane.errors import PeerError, UsageError
from keylane.foreign_json import has_shape, read_object
from keylane.limits import DAY_MS, MOST_AMOUNT, MOST_AT_ONCE, MOST_LIMITS, Cap, Per, limit_name, millionths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = 1
MAX_BYTES = 16_384
"""Of a record: one with sixteen limits has less."""
MAX_TEXT = 100
"""Characters of a member's, group's, unit's or limit's name."""
MOST_NS = 10**9 * 86_400 * 32
"""A month in nanoseconds: no lead is larger."""
MOST_SPENT = 1_000 * MOST_AMOUNT
"""Of a day, in millionths: debts may make it more than any cap."""
MOST_DAYS = 4
"""Of a cap that are remembered: leaders whose clocks differ write of two of them in turn."""
MOST_WAIT_MS = DAY_MS
"""Of a cool-down, as it is asked for."""
MOST_LEASE_MS = 60_000
MOST_SLOT_MEMBERS = 200
"""That have calls at once, or wait for some: all of them stand in each record. Others wait until one of them ends."""


class UnreadableEntryError(PeerError):
    """Bytes in a budget's topic that are no record of a budget, or of a later release."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit as records have it: amounts are in millionths."""

    name: str
    """What its state is kept under."""
    unit: str
    count: int
    per_ms: int = 0
    """Of a rate; 0: it is a cap for a day."""
    burst: int = 0
    """Of a rate: the most at once."""
    ahead_ms: int = 0
    """Of a cap: how much its day is ahead of UTC's."""

    def time_ns(self, amount: int) -> int:
        """How long the rate takes for so much, rounded up."""
        return -(-amount * self.per_ms * 1_000_000 // self.count)

    @property
    def burst_ns(self) -> int:
        """How long it takes until an empty bucket is full."""
        return self.burst * self.per_ms * 1_000_000 // self.count


def limit_of(limit: Per | Cap) -> Limit:
    count = millionths("count", limit.count)
    if isinstance(limit, Per):
        return Limit(limit_name(limit), limit.unit, count, limit.per_ms, millionths("burst", limit.most_at_once))
    return Limit(limit_name(limit), limit.unit, count, ahead_ms=limit.ahead_ms)


@dataclass(frozen=True, slots=True)
class State:
    """What a writer had read when it wrote: how far each limit was used up behind the record at `as_of`."""

    as_of: int
    """An offset."""
    leads_ns: Mapping[str, int] = field(default_factory=dict)
    """By limit, how much later than this record an empty bucket stands; below 0 where there is something in it."""
    spent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """By cap, days and what was spent on each, in millionths."""
    cool_ns: int | None = None
    """How much longer nothing starts; below 0: since when all begins slowly again."""
    slots: SlotsState | None = None
    """None: nobody has asked for any."""


@dataclass(frozen=True, slots=True)
class SlotsState:
    """Who may have how many calls at once."""

    count: int
    """Of all."""
    members: Sequence[tuple[str, int, int, int]] = ()
    """In turn: a member, how many it wants, how many it has, and how long its lease runs, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What all of them have. `member` and `seq` make it one: what comes twice counts once."""

    member: str
    seq: int
    state: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Entry):
    """May I spend this? The answer is a time."""

    kind: ClassVar[str] = "ask"
    group: str = ""
    limits: Sequence[Limit]
    amounts: Mapping[str, int]
    """By unit, in millionths."""
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Return(Entry):
    """Of what was granted to the ask `of`, this was not spent."""

    kind: ClassVar[str] = "return"
    of: int
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement(Entry):
    """More was spent than asked for."""

    kind: ClassVar[str] = "settle"
    limits: Sequence[Limit]
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown(Entry):
    """The service asks all to wait: it was told to a call that began behind the record at `began`."""

    kind: ClassVar[str] = "cool"
    wait_ms: int
    began: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Entry):
    """So many calls at once its writer wants, and of those that it has it keeps no more than so many."""

    kind: ClassVar[str] = "hold"
    group: str = ""
    count: int
    """Of all members, as its writer knows it."""
    wants: int
    keeps: int
    lease_ms: int


AnyEntry = Ask | Return | Settlement | Cooldown | Hold


class _StateDict(TypedDict):
    as_of: int
    leads: dict[str, int]
    spent: dict[str, list[tuple[int, int]]]
    cool: int | None
    slots: NotRequired[_SlotsDict]


class _SlotsDict(TypedDict):
    count: int
    members: list[tuple[str, int, int, int]]


class _EntryDict(TypedDict):
    v: int
    kind: str
    member: str
    seq: int
    state: NotRequired[_StateDict | None]


class _AskDict(_EntryDict):
    group: str
    limits: list[list[int | str]]
    amounts: dict[str, int]
    lease_ms: int


class _ReturnDict(_EntryDict):
    of: int
    amounts: dict[str, int]


class _SettlementDict(_EntryDict):
    limits: list[list[int | str]]
    amounts: dict[str, int]


class _CooldownDict(_EntryDict):
    wait_ms: int
    began: int


class _HoldDict(_EntryDict):
    group: str
    count: int
    wants: int
    keeps: int
    lease_ms: int


_SHAPES: dict[str, Any] = {
    "ask": _AskDict,
    "return": _ReturnDict,
    "settle": _SettlementDict,
    "cool": _CooldownDict,
    "hold": _HoldDict,
}


def encode(entry: AnyEntry) -> bytes:
    said: dict[str, Any] = {"v": VERSION, "kind": entry.kind, "member": entry.member, "seq": entry.seq}
    match entry:
        case Ask():
            said |= {"group": entry.group, "lease_ms": entry.lease_ms}
        case Return():
            said |= {"of": entry.of}
        case Cooldown():
            said |= {"wait_ms": entry.wait_ms, "began": entry.began}
        case Hold():
            said |= {"group": entry.group, "lease_ms": entry.lease_ms}
            said |= {"count": entry.count, "wants": entry.wants, "keeps": entry.keeps}
    if isinstance(entry, Ask | Settlement):
        said["limits"] = [_said_of(one) for one in entry.limits]
    if not isinstance(entry, Cooldown | Hold):
        said["amounts"] = dict(entry.amounts)
    if (state := entry.state) is not None:
        said["state"] = {
            "as_of": state.as_of,
            "leads": dict(state.leads_ns),
            "spent": {name: [list(one) for one in days] for name, days in state.spent.items()},
            "cool": state.cool_ns,
        }
        if (slots := state.slots) is not None:
            said["state"]["slots"] = {"count": slots.count, "members": [list(one) for one in slots.members]}
    return json.dumps(said, separators=(",", ":")).encode()


def decode(value: bytes | None) -> AnyEntry:
    """Raises `UnreadableEntryError`."""
    if value is None or len(value) > MAX_BYTES:
        raise UnreadableEntryError("it is no record of a budget: it is empty, or too long")
    try:
        said = read_object(value)
    except UsageError as error:
        raise UnreadableEntryError(f"it is no record of a budget: {error}") from None
    kind = said.get("kind")
    if said.get("v") != VERSION or not isinstance(kind, str) or kind not in _SHAPES:
        raise UnreadableEntryError("it is no record of a budget, or one that a later release wrote")
    if not has_shape(said, _SHAPES[kind]):
        raise UnreadableEntryError(f"{kind!r} lacks what such a record has")
    common: dict[str, Any] = {
        "member": _text(said["member"]),
        "seq": _within("seq", said["seq"], 0, 2**62),
        "state": None if said.get("state") is None else _state(said["state"]),
    }
    if kind == "cool":
        wait_ms = _within("wait_ms", said["wait_ms"], 0, MOST_WAIT_MS)
        return Cooldown(wait_ms=wait_ms, began=_within("began", said["began"], -1, 2**62), **common)
    if kind == "hold":
        return _hold(said, common)
    amounts = _amounts(said["amounts"])
    if kind == "return":
        return Return(of=_within("of", said["of"], 0, 2**62), amounts=amounts, **common)
    limits = _limits(said["limits"])
    if kind == "settle":
        return Settlement(limits=limits, amounts=amounts, **common)
    lease_ms = _within("lease_ms", said["lease_ms"], 0, MOST_LEASE_MS)
    return Ask(group=_text(said["group"], least=0), limits=limits, amounts=amounts, lease_ms=lease_ms, **common)


def _hold(said: dict[str, Any], common: dict[str, Any]) -> Hold:
    return Hold(
        group=_text(said["group"], least=0),
        count=_within("count", said["count"], 1, MOST_AT_ONCE),
        wants=_within("wants", said["wants"], 0, MOST_AT_ONCE),
        keeps=_within("keeps", said["keeps"], 0, 2**62),
        lease_ms=_within("lease_ms", said["lease_ms"], 0, MOST_LEASE_MS),
        **common,
    )


def _said_of(limit: Limit) -> list[int | str]:
    if limit.per_ms:
        return ["per", limit.unit, limit.count, limit.per_ms, limit.burst]
    return ["cap", limit.unit, limit.count, limit.ahead_ms]


def _limits(said: list[list[Any]]) -> tuple[Limit, ...]:
    if not 1 <= len(said) <= MOST_LIMITS:
        raise UnreadableEntryError(f"{len(said)} limits")
    limits = tuple(map(_limit, said))
    if len({one.name for one in limits}) < len(limits):
        raise UnreadableEntryError("a limit twice")
    return limits


def _limit(said: list[Any]) -> Limit:
    match said:
        case ["per", str(unit), int(count), int(per_ms), int(burst)]:
            _within("count", count, 1, MOST_AMOUNT)
            _within("per_ms", per_ms, 1, 31 * DAY_MS)
            _within("burst", burst, 1, MOST_AMOUNT)
            found = Limit(f"{_text(unit)}/{per_ms}", unit, count, per_ms, burst)
            _within("burst", found.burst_ns, 0, MOST_NS)
            return found
        case ["cap", str(unit), int(count), int(ahead_ms)]:
            _within("count", count, 1, MOST_AMOUNT)
            return Limit(f"{_text(unit)}/day", unit, count, ahead_ms=_within("day", ahead_ms, -DAY_MS, DAY_MS))
    raise UnreadableEntryError("a limit of a kind that this release does not know")


def _amounts(said: dict[str, int]) -> dict[str, int]:
    if not 1 <= len(said) <= MOST_LIMITS:
        raise UnreadableEntryError(f"{len(said)} amounts")
    return {_text(unit): _within("amount", amount, 0, MOST_AMOUNT) for unit, amount in said.items()}


def _state(said: dict[str, Any]) -> State:
    leads, spent = said["leads"], said["spent"]
    if len(leads) + len(spent) > 2 * MOST_LIMITS:
        raise UnreadableEntryError("a state of too many limits")
    return State(
        _within("as_of", said["as_of"], 0, 2**62),
        {_text(name): _within("lead", lead, -MOST_NS, MOST_NS) for name, lead in leads.items()},
        {_text(name): _days(days) for name, days in spent.items()},
        None if said["cool"] is None else _within("cool", said["cool"], -MOST_NS, MOST_NS),
        None if said.get("slots") is None else _slots(said["slots"]),
    )


def _slots(said: dict[str, Any]) -> SlotsState:
    if len(said["members"]) > MOST_SLOT_MEMBERS:
        raise UnreadableEntryError(f"{len(said['members'])} members")
    members = tuple(
        (
            _text(member),
            _within("wants", wants, 0, MOST_AT_ONCE),
            _within("has", has, 0, MOST_AT_ONCE),
            _within("lease", left_ns, 0, MOST_LEASE_MS * 1_000_000),
        )
        for member, wants, has, left_ns in said["members"]
    )
    return SlotsState(_within("count", said["count"], 1, MOST_AT_ONCE), members)


def _days(said: list[list[int]]) -> tuple[tuple[int, int], ...]:
    if len(said) > MOST_DAYS:
        raise UnreadableEntryError(f"{len(said)} days")
    return tuple(
        (_within("day", day, -(2**40), 2**40), _within("spent", amount, 0, MOST_SPENT)) for day, amount in said
    )


def _text(said: str, least: int = 1) -> str:
    if not least <= len(said) <= MAX_TEXT or not said.isprintable():
        raise UnreadableEntryError("a name that is empty, too long, or has control characters")
    return said


def _within(name: str, number: int, least: int, most: int) -> int:
    if isinstance(number, bool) or not least <= number <= most:
        raise UnreadableEntryError(f"{name} is out of its bounds")
    return number
