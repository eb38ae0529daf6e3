"""`Membership`: what a member of a consumer group has, and what it has to do, as a state machine.

There is no client, thread, clock or log here. An event comes in and gives actions one after the other; whoever takes
them (`keylane.kafka.group_member`) does each before it asks for the next, since what comes next may depend on it.

A partition is, for this member,

    not ours    the group has not given it, or has it back
    absent      the group has given it, and its topic was deleted: it begins when the topic is made anew
    given       the group has given it while it was going on, and takes no commit: it begins when that is over
    ours        it is read, in the epoch of its assignment
    ending      it is ours, and its records come to their end: for the group, which takes it back, or for a seek

One set of partitions is ending at a time. An event that cannot wait for it has it come to its end first (`Finish`), and
what the group took without asking is `Lost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

Name = tuple[str, int]
"""Topic and partition."""

Place = tuple[str, int, int]
"""Topic, partition and offset."""

LOOK_S = 0.5
"""How often it is looked for a topic that a broker does not know."""

DELETED_S = 2.0
"""A topic that brokers do not know for so long was deleted; one that starts may not know all of them for a moment."""

NEXT_TOPIC_S = 5.0
"""How often one of the topics that are assigned is looked for, though nobody missed it."""

AGAIN_S = 0.2
"""How soon it is tried again to begin what could not."""

LOOK_AGAIN_S = 5.0
"""How often it is looked for a topic that was deleted and may be made anew."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to seek: an offset, the first record of a time on, or where the group stands, with some to run again."""

    offset: int | None = None
    time_ms: int | None = None
    again: frozenset[int] = frozenset()
    """Offsets that are complete, and are not from now on."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Go on elsewhere with these, and with all others that are known."""

    targets: Mapping[Name, Target]
    others: Target | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Let these records, which are complete, run again; all others stay what they are."""

    records: tuple[Place, ...]

    @property
    def targets(self) -> dict[Name, Target]:
        offsets: dict[Name, set[int]] = {}
        for topic, partition, offset in self.records:
            offsets.setdefault((topic, partition), set()).add(offset)
        return {name: Target(again=frozenset(found)) for name, found in offsets.items()}

    def told(self, moved: Mapping[Name, str]) -> dict[Place, str]:
        """Of partitions that went on, why their records do not run again; empty where they do."""
        return {one: moved[one[:2]] for one in self.records if one[:2] in moved}


@dataclass(frozen=True, slots=True)
class Begin:
    """Find out where these start and let them begin; `began` is told which did."""

    names: list[Name]
    targets: Mapping[Name, Target]
    """Of those that were sought in."""
    is_reload: bool = False
    """Whether they were ours all the time."""


@dataclass(frozen=True, slots=True)
class End:
    """Have the records of these come to their end."""

    names: list[Name]


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait until the records of these are through and committed."""

    names: list[Name]


@dataclass(frozen=True, slots=True)
class Lost:
    """The group has given these to others."""

    names: list[Name]


@dataclass(frozen=True, slots=True)
class Stop:
    """Do not read these any more."""

    names: list[Name]


@dataclass(frozen=True, slots=True)
class Deleted:
    """This topic is no more, and so are these, which were ours."""

    topic: str
    names: list[Name]


@dataclass(frozen=True, slots=True)
class Keep:
    """Have the client tell the group nothing yet."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Have the client tell the group that it has back what it took."""


Action = Begin | End | Finish | Lost | Stop | Deleted | Keep | GiveBack


class _Ending(NamedTuple):
    names: list[Name]
    targets: Mapping[Name, Target]
    """Where they go on; empty when the group takes them back."""


class Membership:
    """One member, of a group or of partitions that are assigned by hand.

    Thread safety: one thread at a time; `ours` may be read by any.
    """

    def __init__(self, *, is_by_hand: bool, is_closing: Callable[[], bool]) -> None:
        """`is_closing` says whether the member is to leave: then nothing begins any more."""
        self.ours: dict[Name, int] = {}
        """The epoch of each."""
        self._is_by_hand = is_by_hand
        self._is_closing = is_closing
        self._ending: _Ending | None = None
        self._missing: dict[str, float] = {}
        """Since when brokers do not know these topics."""
        self._absent: dict[str, set[Name]] = {}
        """Topics that were deleted, with those of their partitions that the group has not taken back."""
        self._next_topic_at = 0.0
        self._turn = 0
        """Which topic is the next that is looked for."""
        self._look_at = 0.0
        """When to look for missing topics next."""
        self._not_begun: list[Begin] = []
        """What the group gave and was going on just then, so that it could not begin. A cooperative group does not give
        again what a member has."""
        self._again_at = 0.0
        """When that is tried again."""

    @property
    def is_ending(self) -> bool:
        return self._ending is not None

    # --- what the group does ---

    def assigned(self, names: list[Name]) -> Iterator[Action]:
        """The group gives these to the member."""
        if self._ending is not None and self._ending.targets:
            yield from self.finish()  # a cooperative group gives more of them while some are sought in: those stay
        elif self._ending is not None:  # the session timed out meanwhile, and the group went on
            yield from self._lose(self._ending.names)
        self._no_longer_absent(names)  # else they would begin twice
        self._no_longer_to_begin(names)
        yield Begin(names, {})
        yield Keep()

    def revoked(self, names: list[Name]) -> Iterator[Action]:
        """The group wants these back."""
        yield from self.finish()
        self._no_longer_to_begin(names)
        self._no_longer_absent(names)  # now: some may have been sought in a topic that turns out to be no more
        known = self._known(names)
        if not known:
            yield from self._give_back([])
            return
        yield from self._end(known, {})
        if self._is_closing():
            yield from self.finish()
        else:
            yield Keep()

    def lost(self, names: list[Name]) -> Iterator[Action]:
        """The group went on without this member."""
        self._not_begun.clear()
        self._no_longer_absent(names)
        yield from self._lose(self._known(names))
        yield from self._give_back([])

    def fenced(self) -> Iterator[Action]:
        """The member's client was given up."""
        self._not_begun.clear()
        yield from self._lose(sorted(self.ours))

    # --- what the consumer does ---

    def assigned_by_hand(self, names: list[Name]) -> Iterator[Action]:
        yield Begin(names, {})

    def sought(self, targets: Mapping[Name, Target], others: Target | None) -> Iterator[Action]:
        """Go on elsewhere with these, and with all others that are ours. Only while nothing is ending."""
        assert self._ending is None, "a seek while partitions are ending"
        wanted = {name: targets.get(name, others) for name in sorted(self.ours)}
        chosen = {name: target for name, target in wanted.items() if target is not None}
        if chosen:
            yield from self._end(list(chosen), chosen)

    def reloaded(self, epochs: Iterable[tuple[Name, int]]) -> Iterator[Action]:
        """Begin these anew, as far as they are ours in these epochs and not ending."""
        ending = [] if self._ending is None else self._ending.names
        names = [name for name, epoch in epochs if self.ours.get(name) == epoch and name not in ending]
        yield Stop(names)
        yield Begin(names, {}, is_reload=True)

    def finish(self) -> Iterator[Action]:
        """What is ending, if anything is, has to be through now: it goes back, or on where it was sought."""
        ending = self._ending
        if ending is None:
            return
        yield Finish(ending.names)
        if ending.targets and not self._is_closing():
            yield from self._forget(ending.names)
            yield Begin(ending.names, ending.targets)
        else:
            yield from self._give_back(ending.names)

    def left(self) -> Iterator[Action]:
        """The member is about to leave."""
        if self._is_by_hand and self.ours:  # nobody takes them back
            yield from self._end(sorted(self.ours), {})
        yield from self.finish()

    def began(self, epochs: Mapping[Name, int]) -> None:
        """These are ours."""
        self.ours.update(epochs)

    # --- what could not begin ---

    def did_not_begin(self, action: Begin, now: float) -> None:
        """The group was going on: either it takes these back, or they begin with the generation that comes."""
        self._not_begun.append(action)
        self._again_at = now + AGAIN_S

    def again(self, now: float) -> Iterator[Action]:
        """Let begin what could not. Only while nothing is ending."""
        if self._not_begun and now >= self._again_at and not self._is_closing():
            actions, self._not_begun = self._not_begun, []
            yield from actions

    def _no_longer_to_begin(self, names: Collection[Name]) -> None:
        left = [replace(one, names=[name for name in one.names if name not in names]) for one in self._not_begun]
        self._not_begun = [one for one in left if one.names]

    # --- topics that are no more ---

    def suspect(self, topic: str, now: float) -> None:
        """A broker does not know this topic."""
        self._missing.setdefault(topic, now)

    def topics_to_look_for(self, now: float) -> list[str]:
        """Where nothing comes and nothing is committed nobody meets a deletion, so one topic after the other is looked
        for anyway."""
        if now >= self._next_topic_at and (topics := sorted({topic for topic, _ in self.ours})):
            self._next_topic_at = now + NEXT_TOPIC_S
            self._turn += 1
            self.suspect(topics[self._turn % len(topics)], now)
        if not self._missing or now < self._look_at:
            return []
        self._look_at = now + (LOOK_S if self._missing.keys() - self._absent else LOOK_AGAIN_S)
        return list(self._missing)

    def is_deleted(self, topic: str) -> bool:
        return topic in self._absent

    def topic_is_there(self, topic: str, partitions: Collection[int]) -> Iterator[Action]:
        """If it was deleted before, it is a new one. What the group has not taken back meanwhile begins again."""
        self._missing.pop(topic, None)
        names = self._absent.pop(topic, None)
        if names is not None:
            yield Begin([name for name in sorted(names) if name[1] in partitions], {})

    def topic_is_unknown(self, topic: str, now: float) -> Iterator[Action]:
        """The brokers were asked, and do not know it."""
        if topic not in self._absent and now >= self._missing[topic] + DELETED_S:
            yield from self._deleted(topic)

    def that_are_there(self, names: Sequence[Name]) -> list[Name]:
        """Of what the group gives, what can begin; the others wait for their topics."""
        for name in names:
            if name[0] in self._absent:
                self._absent[name[0]].add(name)
        return [name for name in names if name[0] not in self._absent]

    def has_no_log(self, topic: str, now: float) -> Iterator[Action]:
        """It was deleted while the group did not know it yet."""
        self.suspect(topic, now)
        yield from self._deleted(topic)

    # --- steps ---

    def _end(self, names: list[Name], targets: Mapping[Name, Target]) -> Iterator[Action]:
        self._ending = _Ending(names, targets)
        yield End(names)

    def _lose(self, names: list[Name]) -> Iterator[Action]:
        if names:
            yield Lost(names)
        yield from self._forget(names)

    def _give_back(self, names: list[Name]) -> Iterator[Action]:
        yield from self._forget(names)
        if not self._is_by_hand:
            yield GiveBack()

    def _forget(self, names: list[Name]) -> Iterator[Action]:
        yield Stop(names)
        for name in names:
            self.ours.pop(name, None)
        self._ending = None

    def _deleted(self, topic: str) -> Iterator[Action]:
        """What is ending comes to its end all the same."""
        ending = [] if self._ending is None else self._ending.names
        names = sorted(name for name in self.ours if name[0] == topic and name not in ending)
        self._absent[topic] = set(names)
        yield Stop(names)
        for name in names:
            del self.ours[name]
        yield Deleted(topic, names)

    def _known(self, names: list[Name]) -> list[Name]:
        """Those that began: not the ones whose start could not be resolved."""
        return [name for name in names if name in self.ours]

    def _no_longer_absent(self, names: list[Name]) -> None:
        for name in names:
            self._absent.get(name[0], set()).discard(name)
