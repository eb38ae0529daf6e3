"""Commands to the members of a group: how they are written, which of them count, and what holds of them. Pure.

A command is a record in a topic of one partition. Its key is the command's id, its value is JSON, and its header
`keylane.mac` is the HMAC-SHA256 (RFC 2104) of the value under the token that the sender and the members have; the token
itself is nowhere in Kafka. A command counts when its MAC is right and its number is higher than those of all that
counted before. So every reader of the topic says the same of each command, whenever it reads it; of two senders at once
the later one is told; and a command that somebody without the token writes once more changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.passing import Passing
from keylane.consumer.settings import Settings
from keylane.errors import UsageError
from keylane.flow.keys import MOST_RULES, KeyRule, Where
from keylane.foreign_json import read_object
from keylane.kafka.membership import Replay, Seek, Target
from keylane.options import Rates, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.consumer.passing import Place
    from keylane.consumer.settings import Change
    from keylane.pipeline import Pipeline

VERSION = 1
"""Of the values."""

MAC = "keylane.mac"
"""The header with the value's HMAC, in hexadecimal digits."""
AGAIN = "keylane.again"
"""The header of a command that members write again after its topic was deleted: who has it need not be told that it is
an old one."""

LATE_MS = 60_000
"""A command that is done once and comes later than this is not done: who sent it has been told so long since."""

Verb = Literal[
    "pause",
    "resume",
    "adjust",
    "seek",
    "hold-key",
    "skip-key",
    "limit-key",
    "release-key",
    "skip-record",
    "park-record",
    "replay-record",
]
MOST_RECORDS = 100
"""That one command may name."""
Name = tuple[str, int]
"""Topic and partition."""
Once = Seek | Passing | Replay
"""What is done once, and does not hold for members that start later."""

Said = dict[str, Any]
"""An object of JSON."""


@dataclass(frozen=True, slots=True)
class Adjusting:
    """What `adjust` changes."""

    max_concurrency: int | None = None
    """None: as it is."""
    rates: Mapping[str, float | None] | None = None
    """Fields of `keylane.Rates` by name; those that are left out stay as they are."""
    as_in_pipeline: bool = False
    """Take back what was adjusted before."""


@dataclass(frozen=True, slots=True)
class Release:
    """What `release-key` takes back."""

    where: Where | None
    """None: every rule."""


Asked: TypeAlias = Pause | Resume | Adjusting | Seek | KeyRule | Release | Passing | Replay
"""What a command asks for."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, as its sender wrote it."""

    id: str
    group: str
    number: int
    """Higher than that of every command before, as far as the sender knew."""
    sent_ms: int
    by: str
    """Who sent it, as the sender says."""
    asked: Asked

    @property
    def verb(self) -> Verb:
        match self.asked:
            case Pause():
                return "pause"
            case Resume():
                return "resume"
            case Adjusting():
                return "adjust"
            case Seek():
                return "seek"
            case KeyRule(do="hold"):
                return "hold-key"
            case KeyRule(do="skip"):
                return "skip-key"
            case KeyRule():
                return "limit-key"
            case Release():
                return "release-key"
            case Passing():
                return "skip-record" if self.asked.dlq is None else "park-record"
            case Replay():
                return "replay-record"

    @property
    def partitions(self) -> tuple[Name, ...] | None:
        """Those that it is about; None: all."""
        match self.asked:
            case Pause(names) | Resume(names):
                return names
            case Seek(targets):
                return tuple(sorted(targets))
            case Passing(records) | Replay(records):
                return tuple(sorted({(topic, partition) for topic, partition, _ in records}))
            case Adjusting() | KeyRule() | Release():
                return None

    @property
    def about(self) -> str:
        """For people."""
        match self.asked:
            case Pause(names) | Resume(names):
                return "all" if names is None else ", ".join(f"{topic}-{partition}" for topic, partition in names)
            case Adjusting(as_in_pipeline=True):
                return "as in the pipeline"
            case Adjusting(most, rates):
                changed = {} if most is None else {"max_concurrency": most}
                return ", ".join(f"{name}={value}" for name, value in (changed | dict(rates or {})).items())
            case Seek(targets):
                return ", ".join(f"{topic}-{one} to {_place(to)}" for (topic, one), to in sorted(targets.items()))
            case KeyRule(where, _, per_s):
                return str(where) if per_s is None else f"{where} at most {per_s:g}/s"
            case Release(where):
                return "all" if where is None else str(where)
            case Passing(records, dlq):
                return ", ".join(map(named, records)) + ("" if dlq is None else f" to {dlq}")
            case Replay(records):
                return ", ".join(map(named, records))

    def is_late(self, now_ms: int) -> bool:
        """Whether it is too late to do it, where it is done once."""
        return isinstance(self.asked, Once) and now_ms - self.sent_ms > LATE_MS

    def value(self) -> bytes:
        """As the topic has it."""
        said = {
            "version": VERSION,
            "id": self.id,
            "group": self.group,
            "number": self.number,
            "sent_ms": self.sent_ms,
            "by": self.by,
            "do": self.verb,
            **_written(self.asked),
        }
        return json.dumps(said, sort_keys=True).encode()


def named(record: Place) -> str:
    """As the command line has it."""
    topic, partition, offset = record
    return f"{topic}:{partition}@{offset}"


def _place(target: Target) -> str:
    return f"the time {target.time_ms}" if target.offset is None else str(target.offset)


def _written(asked: Asked) -> Said:
    match asked:
        case Pause(names) | Resume(names):
            return {"partitions": None if names is None else [list(name) for name in names]}
        case Adjusting():
            return asdict(asked)
        case Seek(targets):
            return {"to": [[*name, one.offset, one.time_ms] for name, one in sorted(targets.items())]}
        case KeyRule(where, _, per_s):
            return {"where": str(where), "per_s": per_s}
        case Release(where):
            return {"where": None if where is None else str(where)}
        case Passing(records, dlq, why):
            return {"records": [list(one) for one in records], "dlq": dlq, "why": why}
        case Replay(records):
            return {"records": [list(one) for one in records]}


def read(value: bytes) -> Command:
    """A command, as the topic has it. Raises `UsageError` for what is none of this version's."""
    said = read_object(value)
    if said.get("version") != VERSION:
        raise UsageError(f"the command has another version, and this keylane reads {VERSION}")
    try:
        command_id, group, by = str(said["id"]), str(said["group"]), str(said["by"])
        command = Command(command_id, group, int(said["number"]), int(said["sent_ms"]), by, _asked(said))
        json.dumps(command.about)
    except UsageError:
        raise
    except Exception:  # of whatever shape it is; what it holds is not shown: nobody has vouched for it
        raise UsageError("the command cannot be read: it is none of this keylane's") from None
    return command


def _asked(said: Said) -> Asked:
    match said["do"]:
        case "pause":
            return Pause(_names(said["partitions"]))
        case "resume":
            return Resume(_names(said["partitions"]))
        case "adjust":
            return adjusting(said["max_concurrency"], said["rates"], as_in_pipeline=bool(said["as_in_pipeline"]))
        case "seek":
            return Seek({(str(topic), int(one)): Target(offset, time_ms) for topic, one, offset, time_ms in said["to"]})
        case "hold-key":
            return KeyRule(Where.parse(said["where"]), "hold")
        case "skip-key":
            return KeyRule(Where.parse(said["where"]), "skip")
        case "limit-key":
            return KeyRule(Where.parse(said["where"]), "limit", float(said["per_s"]))
        case "release-key":
            return Release(None if said["where"] is None else Where.parse(said["where"]))
        case "skip-record":
            return passing(_records(said["records"]))
        case "park-record":
            return passing(_records(said["records"]), str(said["dlq"]), str(said["why"]))
        case "replay-record":
            return replaying(_records(said["records"]))
        case other:
            raise UsageError(f"this keylane does not know the command {other!r}")


def _names(written: list[tuple[str, int]] | None) -> tuple[Name, ...] | None:
    return None if written is None else tuple((str(topic), int(partition)) for topic, partition in written)


def _records(written: Iterable[tuple[str, int, int]]) -> list[Place]:
    return [(str(topic), int(partition), int(offset)) for topic, partition, offset in written]


def passing(records: Sequence[Place], dlq: str | None = None, why: str = "") -> Passing:
    """Raises `UsageError` for none, and for too many."""
    return Passing(_places(records), dlq, why)


def replaying(records: Sequence[Place]) -> Replay:
    """The same."""
    return Replay(_places(records))


def _places(records: Sequence[Place]) -> tuple[Place, ...]:
    if not 0 < len(records) <= MOST_RECORDS:
        raise UsageError(f"{len(records)} records: name at most {MOST_RECORDS} in one command, and at least one")
    return tuple((topic, partition, offset) for topic, partition, offset in records)


def adjusting(most: int | None, rates: Mapping[str, float | None] | None, *, as_in_pipeline: bool = False) -> Adjusting:
    """Raises `UsageError` for what cannot be."""
    if most is not None:
        check_whole("max_concurrency", most, 1)
    changed: Said = dict(rates or {})
    Rates(**changed)  # refuses what cannot be
    return Adjusting(most, rates, as_in_pipeline)


# --- the token ---


def mac_of(token: str, cluster: str, value: bytes) -> bytes:
    """What stands in the header. A command holds for the cluster alone that it was signed for."""
    return hmac.new(token.encode(), cluster.encode() + b"\0" + value, hashlib.sha256).hexdigest().encode()


# --- what holds ---


@dataclass(frozen=True, slots=True)
class Holding:
    """What commands have made of a group, as far as it holds for members that start later, too."""

    settings: Settings = field(default_factory=Settings)
    """Without rates."""
    rates: frozenset[tuple[str, float | None]] = frozenset()
    """Fields of `keylane.Rates`, by name, that are not the pipeline's."""

    def after(self, asked: Asked) -> Holding:
        match asked:
            case Seek() | Passing() | Replay():
                return self
            case Adjusting(as_in_pipeline=True):
                return Holding(replace(self.settings, max_concurrency=None))
            case Adjusting(most, rates):
                known = dict(self.rates) | dict(rates or {})
                return Holding(self.settings.after(Adjust(most)), frozenset(known.items()))
            case KeyRule(where):
                return self._ruled(*self._rules_but(where), asked)
            case Release(where):
                return self._ruled(*self._rules_but(where))
            case change:
                return replace(self, settings=self.settings.after(change))

    def _rules_but(self, where: Where | None) -> list[KeyRule]:
        return [] if where is None else [one for one in self.settings.keys if one.where != where]

    def _ruled(self, *rules: KeyRule) -> Holding:
        return replace(self, settings=self.settings.after(RuleKeys(tuple(sorted(rules, key=str)))))

    def check(self, asked: Asked) -> None:
        """Raises `UsageError` for a rule too many, and for one to take back that does not hold."""
        known = [str(one.where) for one in self.settings.keys]
        if isinstance(asked, Release) and (str(asked.where) not in known if asked.where else not known):
            what = "any key" if asked.where is None else f"{str(asked.where)!r}"
            raise UsageError(f"release-key: no rule holds for {what}: `keylane operate show` has those that hold")
        if isinstance(asked, KeyRule) and len(self.after(asked).settings.keys) > MOST_RULES:
            raise UsageError(f"{MOST_RULES} rules hold already: release one, or let a pattern stand for several keys")

    def of(self, pipeline: Pipeline) -> Settings:
        """The same, for a consumer of this pipeline."""
        return replace(self.settings, rates=self._rates(pipeline)) if self.rates else self.settings

    def change(self, asked: Pause | Resume | Adjusting | KeyRule | Release, pipeline: Pipeline) -> Change:
        """What a consumer of this pipeline that runs is told of a command, after which this holds."""
        if isinstance(asked, KeyRule | Release):
            return RuleKeys(self.settings.keys)
        if not isinstance(asked, Adjusting):
            return asked
        most = pipeline.max_concurrency if asked.as_in_pipeline else asked.max_concurrency
        return Adjust(None if most == "auto" else most, self._rates(pipeline))

    def _rates(self, pipeline: Pipeline) -> Rates:
        changed: Said = dict(self.rates)
        return replace(pipeline.rates, **changed)

    def to_dict(self) -> HoldingDict:
        """For reports."""
        return {
            "all_paused": self.settings.all_paused,
            "paused": sorted(self.settings.paused),
            "max_concurrency": self.settings.max_concurrency,
            "rates": dict(sorted(self.rates)),
            "keys": [{"where": str(one.where), "do": one.do, "per_s": one.per_s} for one in self.settings.keys],
        }


class HoldingDict(TypedDict):
    """`Holding`, in JSON."""

    all_paused: bool
    paused: list[Name]
    max_concurrency: int | None
    rates: dict[str, float | None]
    keys: list[Said]
    """Rules by key: `where`, `do` (hold, skip, limit), and of a limit `per_s`."""


# --- which count ---


@dataclass(frozen=True, slots=True)
class Refusal:
    """A command that does not count."""

    command: Command
    reason: str


class CommandLog:
    """The commands of one group, as they stand in their topic. Thread safety: one thread at a time."""

    def __init__(self, group: str, token: str, cluster: str) -> None:
        """`cluster`: the id of the cluster that the topic is in."""
        self._group = group
        self._token = token
        self._cluster = cluster
        self.counted: list[Command] = []
        self.holding = Holding()
        self._signed: dict[str, tuple[bytes, bytes]] = {}
        """Value and MAC of each that counted, by its id."""

    @property
    def number(self) -> int:
        """Of the last that counted."""
        return self.counted[-1].number if self.counted else 0

    def take(self, key: bytes | None, value: bytes | None, mac: bytes | None) -> Command | Refusal | None:
        """The next record: a command that counts, one that does not, or None: it is none of this group's."""
        if key is None or value is None:  # a command that was deleted
            return None
        is_signed = mac is not None and hmac.compare_digest(mac, self.mac_of(value))
        try:
            command = read(value)
        except UsageError:
            return None
        if command.group != self._group or command.id.encode() != key:
            return None
        if mac is None or not is_signed:
            return Refusal(
                command, "it was not made with the token that the members of this group have, for this cluster"
            )
        if command.number <= self.number:
            return Refusal(command, "another command came before it: look at what holds, and send it again")
        self.counted.append(command)
        self._signed[command.id] = value, mac
        self.holding = self.holding.after(command.asked)
        return command

    def mac_of(self, value: bytes) -> bytes:
        """How its sender signs a command of this group."""
        return mac_of(self._token, self._cluster, value)

    def to_write_again(self, now_ms: int) -> list[tuple[bytes, bytes, bytes]]:
        """Key, value and MAC of what a topic that was deleted has to have again: what holds, and the last one, as its
        number is what the next one's follows."""
        gone = {one.id for one in done_with(self.counted, now_ms)}
        kept = [one for one in self.counted if one.id not in gone and not isinstance(one.asked, Once)]
        if self.counted and self.counted[-1] not in kept:
            kept.append(self.counted[-1])
        return [(one.id.encode(), *self._signed[one.id]) for one in kept]


KEPT_MS = 7 * 24 * 3_600_000
"""How long a command stays to be looked at that changes nothing any more."""


def done_with(counted: Sequence[Command], now_ms: int) -> list[Command]:
    """Those that can go: they are old, and what holds is the same without them. The last one stays, as its number is
    what the next one's follows."""
    kept = list(counted)
    gone = []
    for command in counted[:-1]:
        rest = [one for one in kept if one is not command]
        if now_ms - command.sent_ms > KEPT_MS and _held(rest) == _held(kept):
            kept = rest
            gone.append(command)
    return gone


def _held(commands: Iterable[Command]) -> Holding:
    return reduce(lambda held, one: held.after(one.asked), commands, Holding())
