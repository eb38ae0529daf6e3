"""What somebody says of items by their keys while they run: `Where` says which, `KeyRule` what becomes of them, and
`KeyGate` lets items in by that.

The idea: the gate looks at the first of each shard when its turn comes. What is held, or goes no faster than so many a
second, waits here, and those of its shard behind it as ever; what is passed over is its owner's at once. So nothing
else waits for a held key, and order stays. Without a rule there is no gate.

Pure: time is passed in. Thread safety: none; its owner is the flow's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal, Protocol

from keylane.errors import UsageError
from keylane.flow.rates import Bucket
from keylane.records import HasHeaders, readable_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keylane.flow.items import Item, Source
    from keylane.options import Ordering

MAX_CHARACTERS = 1_000
"""Of an expression."""

MOST_RULES = 100
"""Rules of one group: each one with a pattern or a header costs every item a look while it holds."""

BURST_MS = 100
"""What a limit lets start at once: as much as it lets start in this time, and one at least."""

Pattern = tuple[bytes, ...]
"""What stands between the stars: one part for a value without any."""


class Keyed(HasHeaders, Protocol):
    """What can be asked for a key. Clients' messages are as they are."""

    def key(self) -> bytes | None: ...
    def topic(self) -> str: ...


# --- which ---


@dataclass(frozen=True, slots=True, order=True)
class Where:
    """Items for which all of its terms are so; by text: `Where.parse`, `str`.

    Terms stand with blanks between them: `key=PATTERN`, `header.NAME=PATTERN`, `topic=PATTERN`. In a pattern `*` stands
    for any bytes. A backslash takes the next character as it is (a star, a blank, an equals sign, a backslash), and
    with `x` and two digits it is a byte. A missing key, or a header without a value, is not equal to anything.
    """

    key: Pattern | None = None
    """None: any, and none."""
    topic: Pattern | None = None
    headers: tuple[tuple[str, Pattern], ...] = ()
    """Names ascending; of a name that a record has several times one is enough."""

    @classmethod
    def of_key(cls, key: bytes) -> Where:
        """Just this key. Raises `UsageError` for one that no expression has room for."""
        found = cls((key,))
        if len(str(found)) > MAX_CHARACTERS:
            raise UsageError(
                f"a key of {len(key)} bytes is longer than an expression may be ({MAX_CHARACTERS} characters): give "
                "how it begins, as key=…*"
            )
        return found

    @classmethod
    def parse(cls, text: str) -> Where:
        """Raises `UsageError` for what is no expression."""
        if len(text) > MAX_CHARACTERS:
            raise UsageError(f"an expression of {len(text)} characters: give at most {MAX_CHARACTERS}")
        key: Pattern | None = None
        topic: Pattern | None = None
        headers: list[tuple[str, Pattern]] = []
        for name, pattern in _terms(text):
            if name == "key" and key is None:
                key = pattern
            elif name == "topic" and topic is None:
                topic = pattern
            elif name.startswith("header.") and name != "header.":
                headers.append((name.removeprefix("header."), pattern))
            else:
                twice = "twice" if name in ("key", "topic") else "which is no term"
                raise UsageError(f"{text!r}: {name!r} {twice}: give key=…, topic=… and header.NAME=…, each once")
        if key is None and not headers:
            raise UsageError(f"{text!r}: name a key or a header; a whole topic is held by `operate pause --topic`")
        return cls(key, topic, tuple(sorted(headers)))

    @property
    def exact_key(self) -> bytes | None:
        """The one key that it can be about; None where it is about several."""
        return self.key[0] if self.key is not None and len(self.key) == 1 else None

    def holds(self, payload: Keyed) -> bool:
        """Whether it is one of these."""
        if self.key is not None and not _fits(self.key, payload.key()):
            return False
        if self.topic is not None and not _fits(self.topic, payload.topic().encode()):
            return False
        if not self.headers:
            return True
        found = readable_headers_of(payload) or ()
        return all(any(one == name and _fits(pattern, value) for one, value in found) for name, pattern in self.headers)

    def __str__(self) -> str:
        terms = [] if self.key is None else [("key", self.key)]
        terms += [] if self.topic is None else [("topic", self.topic)]
        terms += [(f"header.{name}", pattern) for name, pattern in self.headers]
        return " ".join(f"{_escaped(name.encode())}={'*'.join(map(_escaped, pattern))}" for name, pattern in terms)


def _fits(pattern: Pattern, value: bytes | None) -> bool:
    """In time that is no more than their lengths together, whatever stands in them."""
    if value is None:
        return False
    if len(pattern) == 1:
        return value == pattern[0]
    first, *between, last = pattern
    end = len(value) - len(last)
    if end < len(first) or not value.startswith(first) or not value.endswith(last):
        return False
    at = len(first)
    for part in between:
        at = value.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _terms(text: str) -> Iterator[tuple[str, Pattern]]:
    """Name and pattern of each term. Raises `UsageError`."""
    name: str | None = None
    parts = [b""]
    characters = iter(text + " ")
    for one in characters:
        if one.isspace():
            if name is not None:
                yield name, tuple(parts)
            elif parts != [b""]:
                raise UsageError(f"{text!r}: a term without an equals sign: give key=…, topic=… or header.NAME=…")
            name, parts = None, [b""]
        elif one == "=" and name is None and len(parts) == 1:
            name, parts = parts[0].decode(errors="replace"), [b""]
        elif one == "*":
            parts.append(b"")
        else:
            parts[-1] += _character(text, characters) if one == "\\" else one.encode(errors="surrogateescape")


def _character(text: str, rest: Iterator[str]) -> bytes:
    """What a backslash stands before."""
    one = next(rest, "")
    if one != "x":
        return one.encode()
    try:
        return bytes.fromhex(next(rest, "") + next(rest, ""))
    except ValueError:
        raise UsageError(f"{text!r}: \\x without two hexadecimal digits: write \\xff for a byte") from None


_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@+,")


def _escaped(value: bytes) -> str:
    """So that it is read as it is."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "".join(chr(one) if one in _PLAIN else f"\\x{one:02x}" for one in value)
    if not text.isprintable():
        return "".join(chr(one) if one in _PLAIN else f"\\x{one:02x}" for one in value)
    return "".join(f"\\{one}" if one in "\\*= " else one for one in text)


# --- what becomes of them ---

Treatment = Literal["hold", "skip", "limit"]
"""hold: they wait until the rule is gone. skip: they are through without a call of the function. limit: so many of them
start in a second."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What becomes of items, from now on. Raises `UsageError` for what cannot be."""

    where: Where
    do: Treatment
    per_s: float | None = None
    """Of a limit: of all that it is about together."""

    def __post_init__(self) -> None:
        rate = self.per_s
        if (rate is not None) != (self.do == "limit") or (rate is not None and not (isfinite(rate) and rate > 0)):
            raise UsageError(f"{self.do} of {str(self.where)!r}, per_s={rate}: give a limit records a second, above 0")

    def __str__(self) -> str:
        return f"{self.where} at most {self.per_s:g}/s" if self.per_s is not None else f"{self.where} {_SAID[self.do]}"


_SAID = {"hold": "held", "skip": "skipped"}
_FIRST: dict[Treatment, int] = {"hold": 0, "skip": 1, "limit": 2}


class PassedOver:
    """What became of an item without a call of the function."""

    __slots__ = ()


class _Queue:
    """A rule, and what waits for it."""

    __slots__ = ("bucket", "called", "items", "rule")

    def __init__(self, rule: KeyRule) -> None:
        self.rule = rule
        self.bucket = None if rule.per_s is None else Bucket(rule.per_s, BURST_MS)
        self.items: deque[Item] = deque()
        self.called: set[Item] = set()
        """Have waited for a limit, and may come to their turn once more. They have no token yet: nobody knows when
        there is a worker for them."""

    def lets_in(self, item: Item, now: float) -> bool:
        """Whether it starts, and has used up a token; else it waits here."""
        is_called = item in self.called
        self.called.discard(item)
        if self.bucket is not None and self.bucket.room(now) > 0 and (is_called or not self.items):
            self.bucket.spend(1, now)
            return True
        if is_called:
            self.items.appendleft(item)
        else:
            self.items.append(item)
        return False

    def call(self, now: float) -> list[Item]:
        """Those for which there are tokens, the first first."""
        if self.bucket is None or not self.items:
            return []
        self.called = {item for item in self.called if item.source.goes_on}
        free = self.bucket.room(now) - len(self.called)
        if free <= 0:
            return []
        due: list[Item] = []
        stands: list[Item] = []
        while self.items and len(due) < free:
            item = self.items.popleft()
            (due if item.source.goes_on else stands).append(item)
        self.items.extendleft(reversed(stands))
        self.called.update(due)
        return due

    @property
    def due(self) -> float | None:
        """When the next one may start."""
        waits = self.bucket is not None and any(item.source.goes_on for item in self.items)
        return self.bucket.due() if waits and self.bucket is not None else None

    def take_out(self, source: Source, number: int) -> Item | None:
        found = next((one for one in self.items if one.number == number and one.source is source), None)
        if found is not None:
            self.items.remove(found)
        return found

    def forget_closed(self) -> None:
        self.items = deque(item for item in self.items if item.source.wanted)
        self.called = {item for item in self.called if item.source.wanted}


Verdict = Literal["go", "wait"]


class KeyGate:
    """Of one flow, while there are rules. Where several are about an item the first of these counts: a hold, a skip,
    the lowest limit."""

    def __init__(self, rules: Iterable[KeyRule], ordering: Ordering) -> None:
        queues = [_Queue(one) for one in sorted(rules, key=lambda one: (_FIRST[one.do], one.per_s or 0))]
        self._of_key: dict[bytes | None, list[_Queue]] = {}
        self._others: list[_Queue] = []
        """Those that no one key finds, and, where a key may be found by several, all: in the order in which they
        count."""
        for one in queues:
            key = one.rule.where.exact_key
            if key is None:
                self._others.append(one)
            else:
                self._of_key.setdefault(key, []).append(one)
        self._queues = queues
        self.paces = any(one.bucket is not None for one in queues)
        """Whether how much may start hangs on the time."""
        self.looks_at_each = self.paces or ordering != "key" or any(one.rule.where.headers for one in queues)
        """Whether an item may be stopped though the one before it in its shard was not."""

    def is_about_none(self, payloads: Sequence[Keyed]) -> bool:
        """Whether no rule is about any of these: most often so, and the cheapest to tell."""
        if self._others:
            return all(self._find(one) is None for one in payloads)
        return self._of_key.keys().isdisjoint([one.key() for one in payloads])

    def about(self, payloads: Sequence[Keyed]) -> list[int]:
        """The indices of those that a rule is about."""
        of_key = self._of_key
        if self._others:
            return [at for at, one in enumerate(payloads) if self._find(one) is not None]
        return [at for at, one in enumerate(payloads) if one.key() in of_key and self._find(one) is not None]

    def _find(self, payload: Keyed) -> _Queue | None:
        own = self._of_key.get(payload.key())
        if own is None:
            return next((one for one in self._others if one.rule.where.holds(payload)), None) if self._others else None
        found = [one for one in (*own, *self._others) if one.rule.where.holds(payload)]
        return min(found, key=self._queues.index, default=None)

    def admit(self, item: Item, now: float) -> Verdict | PassedOver:
        """Its turn has come. What is to wait is kept here."""
        queue = self._find(item.payload)
        if queue is None:
            return "go"
        if queue.rule.do == "skip":
            return PassedOver()
        return "go" if queue.lets_in(item, now) else "wait"

    def take_out(self, source: Source, number: int) -> Item | None:
        """It waits here no more; None, if it did not."""
        return next((one for queue in self._queues if (one := queue.take_out(source, number)) is not None), None)

    def pop_due(self, now: float) -> list[Item]:
        """What has waited for its limit long enough, the first first."""
        return [item for queue in self._queues for item in queue.call(now)] if self.paces else []

    @property
    def next_due(self) -> float | None:
        """When to ask for it."""
        return min((due for one in self._queues if (due := one.due) is not None), default=None)

    def forget_closed(self) -> None:
        """Drop the items of closed sources."""
        for queue in self._queues:
            queue.forget_closed()

    @property
    def waiting(self) -> Iterator[tuple[KeyRule, Item, float | None]]:
        """What waits, for which rule, and until when, where that is known."""
        for queue in self._queues:
            for at, item in enumerate(queue.items):
                yield queue.rule, item, queue.due if at == 0 else None
