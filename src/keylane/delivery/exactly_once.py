"""`Once`: a pipeline whose handler's effects and whose records' identities are in one database transaction.

The idea: the handler runs in `Transactions`, and of what was processed before only the outputs, which were kept with
the identity, are given to the engine again. Kafka's commits go on as at least once: they decide how much is asked for
again, never whether it happens again. (Kafka Internals, consumption semantics: "process exactly once" by persisted
message details.)

The store is told what a commit says before it is sent (`keylane.delivery.positions`), and keeps a checksum of each
record: so it notices that it, or the log, is not what it was.

Identities below a partition's committed offset cannot be asked for again, but by somebody who moves the group's offset
back, which is refused at the start. They are purged, whoever committed that offset: a member that was killed purges
nothing, so its successors go by where they start, and whoever ends asks what the group has committed.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from keylane.consumer.own_topics import OwnTopics
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.delivery import stored_steps
from keylane.delivery.checksums import checksum
from keylane.delivery.positions import Seen, before_all, joined, map_of, position_of, runs_of, unseen
from keylane.delivery.stores import Identity, Position
from keylane.delivery.transactions import Transactions, answering, check_transaction, key_of, once_of, unavailable
from keylane.errors import PeerError, StoreError, UsageError
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import line_of
from keylane.offsets import OffsetMap
from keylane.records import Output
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from keylane.consumer.ports import Offset
    from keylane.consumer.start import Start
    from keylane.delivery.stores import OpenStore, Processed, Store, Transaction
    from keylane.flow.outcomes import Outcome
    from keylane.pipeline import Pipeline
    from keylane.records import Record

    Changes = Callable[[Sequence[Start]], Mapping[tuple[str, int], int | None]]

logger = logger_of("keylane.delivery")

PURGE_EVERY_S = 10.0
"""How long after a commit identities are purged at the latest, and how often it is looked whether the store went back.
"""

LEAST_RETENTION_MS = 60_000
"""Keys that are kept for less may be purged before the next commit, and are not asked for again."""

SAMPLES = 128
"""Of purged places, in a partition."""

OF_KEYS = 0
"""The checksum of all that is known by a key: that there is one says that it is not of before positions were noted."""

ANSWER_S = 60.0
"""How long a rebalance waits for a database that has answered before: a restart."""

ASK_AGAIN_S = 0.5

UNSEEN = (
    "was it restored, emptied, failed over, or is it another one? ExactlyOnce(unseen_commits='rewind') starts where "
    "the store is, and runs them (again); 'accept' takes them as done, which is right where an operator has set the "
    "group's offset, or the group ran without this store (docs/delivery.md)"
)
OTHER_CLUSTER = (
    "Its places mean nothing here, so that what was processed there may be processed again: give identity= and scope= "
    "for a key that holds in both, or ExactlyOnce(unseen_commits='accept') to start as a new group (docs/delivery.md)"
)


class Identities:
    """What records are known by. Thread safety: `know` comes before the records of its topics."""

    def __init__(self, cluster: str, pipeline: Pipeline) -> None:
        once = once_of(pipeline)
        self._scope = once.scope
        self._in_cluster = f"{cluster}/{pipeline.group_id}"
        self._group = once.scope or self._in_cluster
        self._function = None if isinstance(once.identity, str) else once.identity  # pipelines have no columns
        self._scopes: dict[str, str] = {}

    @property
    def group(self) -> str:
        """The scope of keys."""
        return self._group

    @property
    def has_own_scope(self) -> bool:
        """Whether it is the user's, and holds over clusters."""
        return self._scope is not None

    @property
    def by_key(self) -> bool:
        return self._function is not None

    def know(self, topic: str, topic_id: str) -> None:
        """A topic's id; empty where the broker knows none. A scope of the user's holds over clusters, where that is
        another one; where the group is with a topic, beside keys, does not."""
        holds_over_clusters = self._scope is not None and not self.by_key
        self._scopes[topic] = (
            f"{self._scope}/{topic}" if holds_over_clusters else f"{self._in_cluster}/{topic}/{topic_id}"
        )

    def knows(self, topic: str) -> bool:
        return topic in self._scopes

    def scope(self, topic: str) -> str:
        return self._scopes[topic]

    def of(self, record: Record) -> Identity:
        if self._function is None:
            return Identity(self._scopes[record.topic], record.partition, record.offset)
        return Identity(self._group, -1, -1, key_of(self._function(record), repr(record)))


def checksum_of(record: Record) -> int:
    """What tells a record from another one at the same place: see `checksum`."""
    return checksum(record.raw_key, record.raw_value, record.timestamp_ms)


class Places:
    """The places that are known to be processed: read when a partition is assigned, and noted since then. Thread
    safety: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], set[int]] = {}
        self._unverified: dict[tuple[str, int], list[int]] = {}
        """What was processed here since the store was last asked whether it still has it."""
        self._unverified_keys: list[str] = []

    def assign(self, name: tuple[str, int], offsets: Iterable[int]) -> None:
        with self._lock:
            self._known[name] = set(offsets)
            self._unverified[name] = []

    def is_known(self, identity: Identity) -> bool | None:
        known = self._known.get(identity[:2])
        return None if known is None else identity.offset in known

    def processed(self, identities: Collection[Identity]) -> None:
        with self._lock:
            for scope, partition, offset, key in identities:
                if key:
                    self._unverified_keys.append(key)
                elif (known := self._known.get((scope, partition))) is not None:
                    known.add(offset)
                    self._unverified[scope, partition].append(offset)

    def unverified(self, name: tuple[str, int]) -> list[int]:
        with self._lock:
            return list(self._unverified.get(name, ()))

    def unverified_keys(self) -> list[str]:
        with self._lock:
            return list(self._unverified_keys)

    def verified_keys(self, count: int) -> None:
        with self._lock:
            del self._unverified_keys[:count]

    def verified(self, name: tuple[str, int], count: int, base: int) -> None:
        """The store still has the first ones; below `base` nothing is asked for again."""
        with self._lock:
            if name in self._known:
                del self._unverified[name][:count]
                self._known[name] = {one for one in self._known[name] if one >= base}


class Once:
    """The pipeline to run, and what has to be done beside it. `group_committed` asks what the group has committed of
    each partition, by any member; None when the group's offsets are kept elsewhere. Thread safety: `check` is the
    group's thread's."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: str,
        topic_id: Callable[[str], str],
        group_committed: Callable[[], Mapping[tuple[str, int], int]] | None = None,
        fail: Callable[[BaseException], None] = lambda _: None,
        changes: Changes = lambda _: {},
    ) -> None:
        """`fail` ends the run, once the store has lost what it had; `changes` says from which offset on logs have other
        records than those of which such starts are true."""
        self._topic_id = topic_id
        self._group_committed = group_committed
        self.identities = Identities(cluster, pipeline)
        places = Places()
        steps_of = None if pipeline.steps is None else self.identities.group
        self._inside = Transactions(pipeline, KeptRecords(self.identities, OwnTopics(pipeline), places), steps_of)
        self._house = House(self._inside.store, self.identities, places, pipeline, cluster, fail, changes)
        self.pipeline = replace(
            pipeline,
            handler=self._inside.handler,
            around=None,
            expires_ms=None,
            resource=self._inside.resource,
            on_commit=self._house.committed,
        )

    def check(self, starts: Sequence[Start]) -> Sequence[Start]:
        """Partitions were assigned, and nothing of them has begun. Returns where they start: where the store is, if it
        has not seen what the group has committed, and that is to count.

        Raises `PeerError` for a start below what is purged: records that are long processed would be skipped unseen;
        `StoreError` for a store that has not seen what the group has committed.
        """
        self._know({start.topic for start in starts})
        return self._house.check(starts)

    def before_commit(self, offsets: Sequence[Offset]) -> None:
        """The group is about to commit this. Raises `StoreError` for a store that has lost what it had."""
        self._house.note_positions(offsets)

    def places_that_wait(self) -> set[tuple[str, int, int]]:
        """The records whose handlers wait for a connection of the store. Any thread."""
        return {(one.topic, one.partition, one.offset) for one in self._inside.items_that_wait()}

    def close(self) -> None:
        """Purge what the group has committed, and disconnect. The run is over."""
        try:
            if self._group_committed is not None:
                self._house.note(self._committed_by_all(self._group_committed))
        except PeerError as error:  # a broker that is gone: the next start of these partitions makes up for it
            logger.warning("identities of partitions that others committed are not purged now: %s", error)
        finally:
            self._house.close()

    def _know(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.identities.know(topic, self._topic_id(topic))

    def _committed_by_all(self, ask: Callable[[], Mapping[tuple[str, int], int]]) -> Mapping[tuple[str, int], int]:
        committed = ask()
        self._know(topic for topic in {topic for topic, _ in committed} if not self.identities.knows(topic))
        return committed


class House:
    """Keeps house in the store: starts are held against what is in it, commits are noted before they are made, and
    identities that nobody can ask for again are purged. Thread safety: any thread."""

    def __init__(
        self,
        store: Store,
        identities: Identities,
        places: Places,
        pipeline: Pipeline,
        cluster: str,
        fail: Callable[[BaseException], None],
        changes: Changes,
    ) -> None:
        """See `Once`."""
        self._fail, self._changes = fail, changes
        self._store = store
        self._identities = identities
        self._places = places
        self._group = pipeline.group_id
        self._has_steps = pipeline.steps is not None
        self._cluster = cluster
        once = once_of(pipeline)
        self._retention_ms = once.retention_ms
        self._unseen_commits = once.unseen_commits
        self._on_commit = pipeline.on_commit
        self._lock = threading.Lock()
        """Guards the connection and what is to purge."""
        self._opened: OpenStore | None = None
        self._has_answered = False
        """Whether it was ever opened."""
        self._seen: dict[tuple[str, int], Seen] = {}
        """What the store has seen of the group's commits, as of the last look."""
        self._committed: dict[tuple[str, int], int] = {}
        """Below which offsets of the partitions is to purge."""
        self._timer: threading.Timer | None = None
        """For the next purge, while there is something to purge."""
        self._closing = threading.Event()

    # --- starts ---

    def check(self, starts: Sequence[Start]) -> Sequence[Start]:
        give_up_at = time.monotonic() + (ANSWER_S if self._has_answered else 0)
        while True:
            with self._lock:
                try:
                    with self._connected().transaction() as transaction:
                        check_transaction(self._store, transaction)
                        seen = self._seen_of(transaction, starts)
                        checked = [self._checked(transaction, one, seen[one.topic, one.partition]) for one in starts]
                except (UsageError, PeerError):  # waiting does not mend it
                    raise
                except Exception as error:  # a database that restarts, or is not there
                    failed = error
                else:
                    self._note({(one.topic, one.partition): one.offsets.base for one in checked if not one.is_new})
                    return checked
            if self._closing.wait(ASK_AGAIN_S) or time.monotonic() >= give_up_at:
                raise unavailable(self._store, failed) from failed

    def _seen_of(self, transaction: Transaction, starts: Sequence[Start]) -> Mapping[tuple[str, int], Seen | None]:
        """By topic and partition, what the store has seen of the logs as they are: one that is behind the group,
        or ahead of it, may know one that was cut since then."""
        found = {
            (one.topic, one.partition): Seen.of(transaction.position(self._identities.scope(one.topic), one.partition))
            for one in starts
        }
        doubtful = [
            replace(one, offsets=seen.offsets, leader_epoch=seen.leader_epoch)
            for one in starts
            if (seen := found[one.topic, one.partition]) is not None
            and seen.leader_epoch >= 0
            and (seen.leader_epoch != one.leader_epoch or unseen(seen.offsets, one.offsets))
        ]
        for name, change in self._changes(doubtful).items() if doubtful else ():
            if (seen := found[name]) is not None and change is not None:
                found[name] = seen.cut_at(change)
        return found

    def _checked(self, transaction: Transaction, start: Start, noted: Seen | None) -> Start:
        scope = self._identities.scope(start.topic)
        name = (scope, start.partition)
        committed = start.offsets
        below = transaction.purged_below(*name)
        seen = None if noted is None else noted.offsets
        if seen is None and self._is_of_before(transaction, name, below):
            seen = committed
        if seen is None:
            self._check_cluster(transaction, start)
        is_chosen = start.is_sought or (start.is_new and seen is None)  # else the group's commits are gone
        known = committed if is_chosen else seen or before_all(start.log_start, committed, start.leader_epoch)
        missing = unseen(committed, known)
        if missing and self._unseen_commits == "rewind":
            start = replace(start, offsets=seen or OffsetMap(start.log_start))
            logger.warning("%s: starting there, where the store is (unseen_commits)", self._said_unseen(start, missing))
        elif missing and self._unseen_commits == "error":
            raise StoreError(f"{self._said_unseen(start, missing)}: {UNSEEN}")
        if start.offsets.base < below:
            raise PeerError(self._said_purged(start, below))
        made = committed if seen is None else joined(seen, committed)
        if start.offsets is not committed:
            made = start.offsets
        epoch = max(start.leader_epoch, -1 if noted is None else noted.leader_epoch)
        self._seen[name] = Seen(made, epoch)
        if Seen.of(transaction.position(*name)) != self._seen[name]:
            transaction.note_position(*name, position_of(made, epoch))
        self._places.assign(name, transaction.places(*name, start.offsets.base))
        return start

    def _is_of_before(self, transaction: Transaction, name: tuple[str, int], below: int) -> bool:
        """Whether the store has something of the partition, of a version that noted no positions: nor checksums. What
        has one was processed since the store was emptied, by a member that had not heard of it."""
        if not self._identities.by_key:
            return bool(below or None in transaction.places(*name).values())
        return transaction.has_unchecked(self._identities.group) and name[0] not in transaction.scopes()

    def _check_cluster(self, transaction: Transaction, start: Start) -> None:
        """The store knows nothing of this topic. Raises `StoreError` where it does under another cluster's id."""
        if self._identities.has_own_scope:
            return
        ours = f"{self._cluster}/{self._group}/{start.topic}/"  # then comes an id, which may have a / in it
        others, is_ours = set(), False
        for scope in transaction.scopes():
            cluster, _, rest = scope.partition("/")
            if scope.startswith(ours):
                self._check_former(transaction, scope, start)
                is_ours = True
            if rest.startswith(f"{self._group}/{start.topic}/"):
                others.add(cluster)
        if others and not is_ours and self._unseen_commits == "error":
            raise StoreError(
                f"the store knows group {self._group!r} with topic {start.topic!r} of cluster {min(others)!r}, and "
                f"this is cluster {self._cluster!r}: a mirror, a copy, or another database? {OTHER_CLUSTER}"
            )

    def _check_former(self, transaction: Transaction, scope: str, start: Start) -> None:
        """`scope` is of the topic that had the name before. Raises `StoreError` where a member may have gone on with it
        in this one."""
        if self._unseen_commits != "error":
            return
        seen = Seen.of(transaction.position(scope, start.partition))
        done = OffsetMap(0) if seen is None else seen.offsets
        places = transaction.places(scope, start.partition, done.base)
        left = [offset for offset in places if not done.is_complete(offset)]
        if left:
            raise StoreError(
                f"topic {start.topic!r} was deleted and made anew, and {len(left)} records of partition "
                f"{start.partition}, from offset {min(left)} on, were processed and never committed before that was "
                "seen: if they are of the topic that is there now, they would be processed twice. "
                "ExactlyOnce(unseen_commits='rewind') runs the new topic from its beginning"
            )

    def _said_unseen(self, start: Start, missing: Sequence[range]) -> str:
        count = sum(map(len, missing))
        if start.is_new:
            return (
                f"group {self._group!r} has no commit for {start.topic}-{start.partition}, and would begin at "
                f"{start.offsets.base}: {count} offsets before that, from {missing[0].start} on, this store has "
                "not seen"
            )
        return (
            f"group {self._group!r} has {count} offsets of {start.topic}-{start.partition} complete, from "
            f"{missing[0].start} on, that this store has not seen"
        )

    def _said_purged(self, start: Start, below: int) -> str:
        return (
            f"group {self._group!r} starts {start.topic}-{start.partition} at offset {start.offsets.base}, and what "
            f"was processed below {below} is purged from the store: those records would be skipped. If the log is the "
            f"one that it was, set the group's offset to {below}: nothing is lost or repeated. If it was restored or "
            f"cut, {below} loses what is new below it, and another group.id repeats what is old: `keylane store "
            "check` tells them apart, and `keylane store forget` makes exactly the new ones run. Outputs of the old "
            "ones are not kept any more: what their topics have lost with the log stays lost"
        )

    # --- commits ---

    def note_positions(self, offsets: Sequence[Offset]) -> None:
        """Before they are committed: see that the store still has what was processed, and tell it. Raises `PeerError`
        for a store that does not answer."""
        with self._lock, answering(self._store):
            try:
                keys = self._places.unverified_keys()
                with self._connected().transaction() as transaction:
                    self._check_keys(transaction, keys)
                    noted = [self._noted(transaction, one) for one in sorted(offsets, key=attrgetter("name"))]
            except StoreError:
                raise
            except Exception:
                self._disconnect()  # connections may be of before the database's restart
                raise
        self._places.verified_keys(len(keys))
        for name, made, verified in noted:
            self._seen[name] = made
            self._places.verified(name, verified, made.offsets.base)

    def _check_keys(self, transaction: Transaction, keys: Sequence[str]) -> None:
        given = set(keys) if self._retention_ms >= LEAST_RETENTION_MS else set()
        if given and (lost := len(given) - transaction.count_keys(self._identities.group, given)):
            raise StoreError(self._said_lost(f"{lost} of {len(given)} keys that were processed"))

    def _noted(self, transaction: Transaction, one: Offset) -> tuple[tuple[str, int], Seen, int]:
        topic, partition = one.name
        name = (self._identities.scope(topic), partition)
        if (last := self._seen.get(name)) is not None:
            stored: Seen | None = self._check_seen(transaction, name, last)
        else:
            stored = Seen.of(transaction.position(*name))
        unverified = self._places.unverified(name)
        below = transaction.purged_below(*name) if unverified else 0
        runs = runs_of({offset for offset in unverified if offset >= below})
        expected = sum(end - begin for begin, end in runs)
        if runs and (lost := expected - transaction.count_places(*name, runs)):
            raise StoreError(
                self._said_lost(f"{lost} of {expected} records that were processed, from offset {runs[0][0]} on", one)
            )
        committed = map_of(Position(one.offset, one.metadata))
        made = Seen(committed, one.leader_epoch) if stored is None else stored.after(committed, one.leader_epoch)
        if made != stored:
            transaction.note_position(*name, position_of(*made))
        return name, made, len(unverified)

    def _said_lost(self, what: str, one: Offset | None = None) -> str:
        of = "" if one is None else f", of {one.name[0]}-{one.name[1]}"
        return (
            f"the store has lost {what}{of}: it was restored, or failed over to a replica "
            "that was behind; start again: what the group has not committed runs again, and what it has and the store "
            "has not is told"
        )

    # --- purges ---

    def committed(self, offsets: Mapping[tuple[str, int], int], error: BaseException | None) -> None:
        """The pipeline's `on_commit`."""
        if self._on_commit is not None:  # first: it may be who keeps the offsets
            self._on_commit(offsets, error)
        if error is None:
            self.note(offsets)

    def note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """The group has these offsets in acknowledged commits: what is below them may be purged."""
        with self._lock:
            self._note(offsets)

    def _note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self._committed |= offsets
        if self._timer is None and not self._closing.is_set():
            self._timer = threading.Timer(PURGE_EVERY_S, self._keep_house)
            self._timer.daemon = True
            self._timer.start()

    def _keep_house(self) -> None:
        with self._lock:
            self._timer = None
            if self._closing.is_set():
                return
            try:
                self._look_back()
            except StoreError as error:
                self._fail(error)
            else:
                self._purge()
                self._note({})

    def _look_back(self) -> None:
        """A member that has nothing to commit hears of its store here. Raises `StoreError` where it has gone back."""
        try:
            with self._connected().transaction() as transaction:
                for name, seen in self._seen.items():
                    self._check_seen(transaction, name, seen)
        except StoreError:
            raise
        except Exception:  # a database that does not answer is the purge's to tell
            self._disconnect()

    def _check_seen(self, transaction: Transaction, name: tuple[str, int], seen: Seen) -> Seen:
        stored = Seen.of(transaction.position(*name))
        if stored is None or stored.has_lost(seen):
            raise StoreError(self._said_lost(f"where the group was with partition {name[1]} of {name[0]}"))
        return stored

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._purge():  # the connections may be of before the database's restart
                self._purge()
            self._disconnect()

    def _purge(self) -> bool:
        """Whether all is purged. What fails here is tried again later: nothing depends on it."""
        if not self._committed:
            return True
        try:
            with self._connected().transaction() as transaction:
                if self._identities.by_key:
                    before_ms = time.time_ns() // 1_000_000 - self._retention_ms
                    transaction.purge_before(self._identities.group, before_ms)
                    if self._has_steps:
                        stored_steps.purge_before(transaction, self._identities.group, before_ms)
                else:
                    for (topic, partition), offset in sorted(self._committed.items()):
                        name = (self._identities.scope(topic), partition)
                        if (seen := transaction.position(*name)) is not None:  # it may be a replica that was behind
                            below = min(offset, seen.base)
                            transaction.purge(*name, below, SAMPLES)
                            if self._has_steps:
                                stored_steps.purge(transaction, *name, below)
        except Exception as error:  # a database that does not answer
            logger.warning("identities could not be purged, and will be later: %s", line_of(error))
            self._disconnect()
            return False
        self._committed.clear()
        return True

    def _connected(self) -> OpenStore:
        if self._opened is None:
            opened = self._store.open()
            self._has_answered = True
            if self._has_steps:
                try:
                    stored_steps.make_table(self._store, opened)
                except BaseException:
                    opened.close()
                    raise
            self._opened = opened
        return self._opened

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


# --- what is kept of a record ---


class KeptRecords:
    """Records and their outputs, for `Transactions`."""

    def __init__(self, identities: Identities, own_topics: OwnTopics, places: Places) -> None:
        self.identity_of = identities.of
        self.checksum_of = (lambda _: OF_KEYS) if identities.by_key else checksum_of
        self.is_known = places.is_known
        self.processed = places.processed
        self._own_topics = own_topics

    def outcome(self, result: Outcome) -> tuple[Outcome, bytes]:
        outcome = self._allowed(outcome_of(result))
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome, _kept(outcome)

    def outcomes(self, result: Outcome, count: int) -> list[tuple[Outcome, bytes]]:
        allowed = [self._allowed(one) for one in outcomes_of(result, count)]
        return [(one, b"" if isinstance(one, Failure) else _kept(one)) for one in allowed]

    def _allowed(self, outcome: Outcome) -> Outcome:
        """An outcome as it is, or why its outputs may not be kept and produced: refused after the commit, they would
        be asked for again and again."""
        if outcome is None or isinstance(outcome, Failure):
            return outcome
        return self._own_topics.refused(outcome) or outcome

    def again(self, processed: Processed) -> list[Output] | None:
        """What a record that was processed before has to produce, for want of knowing whether it did."""
        if not processed.outputs:
            return None
        return [
            Output(
                topic, _bytes(key), _bytes(value), [(name, _bytes(of)) for name, of in headers], partition, timestamp_ms
            )
            for topic, key, value, headers, partition, timestamp_ms in json.loads(processed.outputs)
        ]


def _kept(outcome: Outcome) -> bytes:
    """Outputs as they are kept with an identity."""
    if not outcome:
        return b""
    rows = []
    for one in outcome:
        headers = [[name, _text(value)] for name, value in one.headers]
        rows.append([one.topic, _text(one.key), _text(one.value), headers, one.partition, one.timestamp_ms])
    return json.dumps(rows).encode()


def _text(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
