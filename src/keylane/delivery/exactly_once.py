"""`Once`: a pipeline whose handler's effects and whose records' identities are in one database transaction.

The idea: the handler runs in `Transactions`, and of what was processed before only the outputs, which were kept with
the identity, are given to the engine again. Kafka's commits go on as at least once: they decide how much is asked for
again, never whether it happens again. (Kafka Internals, consumption semantics: "process exactly once" by persisted
message details.)

Identities below a partition's committed offset cannot be asked for again, but by somebody who moves the group's offset
back, which is refused at the start. They are purged, whoever committed that offset: a member that was killed purges
nothing, so its successors go by where they start, and whoever ends asks what the group has committed.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from keylane.consumer.own_topics import OwnTopics
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.delivery.stores import Identity
from keylane.delivery.transactions import Transactions, check_transaction, key_of, once_of, unavailable
from keylane.errors import PeerError, UsageError
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import line_of
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.consumer.start import Start
    from keylane.delivery.stores import OpenStore, Processed, Store
    from keylane.flow.outcomes import Outcome
    from keylane.pipeline import Pipeline
    from keylane.records import Record

logger = logging.getLogger("keylane.delivery")

PURGE_EVERY_S = 10.0
"""How long after a commit identities are purged at the latest."""

ANSWER_S = 60.0
"""How long a rebalance waits for a database that has answered before: a restart."""

ASK_AGAIN_S = 0.5


class Identities:
    """What records are known by. Thread safety: `know` comes before the records of its topics."""

    def __init__(self, cluster: str, pipeline: Pipeline) -> None:
        self._group = f"{cluster}/{pipeline.group_id}"
        identity = once_of(pipeline).identity
        self._function = None if isinstance(identity, str) else identity  # pipelines have no columns
        self._scopes: dict[str, str] = {}

    @property
    def group(self) -> str:
        """The scope of keys."""
        return self._group

    @property
    def by_key(self) -> bool:
        return self._function is not None

    def know(self, topic: str, topic_id: str) -> None:
        """A topic's id; empty where the broker knows none."""
        self._scopes[topic] = f"{self._group}/{topic}/{topic_id}"

    def knows(self, topic: str) -> bool:
        return topic in self._scopes

    def scope(self, topic: str) -> str:
        return self._scopes[topic]

    def of(self, record: Record) -> Identity:
        if self._function is None:
            return Identity(self._scopes[record.topic], record.partition, record.offset)
        return Identity(self._group, -1, -1, key_of(self._function(record), repr(record)))


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
    ) -> None:
        self._topic_id = topic_id
        self._group_committed = group_committed
        self.identities = Identities(cluster, pipeline)
        inside = Transactions(pipeline, KeptRecords(self.identities, OwnTopics(pipeline)))
        self._house = House(inside.store, self.identities, pipeline)
        self.pipeline = replace(
            pipeline, handler=inside.handler, resource=inside.resource, on_commit=self._house.committed
        )

    def check(self, starts: Sequence[Start]) -> None:
        """Partitions were assigned, and nothing of them has begun. Raises `PeerError` for a start below what is purged:
        records that are long processed would be skipped unseen."""
        for topic in {start.topic for start in starts}:
            self.identities.know(topic, self._topic_id(topic))
        if not self.identities.by_key:
            self._house.check(starts)

    def close(self) -> None:
        """Purge what the group has committed, and disconnect. The run is over."""
        try:
            if self._group_committed is not None and not self.identities.by_key:
                self._house.note(self._committed_by_all(self._group_committed))
        except PeerError as error:  # a broker that is gone: the next start of these partitions makes up for it
            logger.warning("identities of partitions that others committed are not purged now: %s", error)
        finally:
            self._house.close()

    def _committed_by_all(self, ask: Callable[[], Mapping[tuple[str, int], int]]) -> Mapping[tuple[str, int], int]:
        committed = ask()
        for topic in {topic for topic, _ in committed}:
            if not self.identities.knows(topic):  # this member had none of its partitions
                self.identities.know(topic, self._topic_id(topic))
        return committed


class House:
    """Keeps house in the store: starts are held against what is purged, and identities that nobody can ask for again
    are purged. Thread safety: any thread."""

    def __init__(self, store: Store, identities: Identities, pipeline: Pipeline) -> None:
        self._store = store
        self._identities = identities
        self._group = pipeline.group_id
        self._retention_ms = once_of(pipeline).retention_ms
        self._on_commit = pipeline.on_commit
        self._lock = threading.Lock()
        """Guards the connection and what is to purge."""
        self._opened: OpenStore | None = None
        self._has_answered = False
        """Whether it was ever opened."""
        self._committed: dict[tuple[str, int], int] = {}
        """Below which offsets of the partitions is to purge."""
        self._timer: threading.Timer | None = None
        """For the next purge, while there is something to purge."""
        self._closing = threading.Event()

    def check(self, starts: Sequence[Start]) -> None:
        give_up_at = time.monotonic() + (ANSWER_S if self._has_answered else 0)
        while True:
            with self._lock:
                try:
                    with self._connected().transaction() as transaction:
                        check_transaction(self._store, transaction)
                        purged = [
                            transaction.purged_below(self._identities.scope(one.topic), one.partition) for one in starts
                        ]
                except UsageError:  # a package that is missing: waiting does not bring it
                    raise
                except Exception as error:  # a database that restarts, or is not there
                    failed = error
                else:
                    self._refuse(starts, purged)
                    self._note({(one.topic, one.partition): one.offsets.base for one in starts})
                    return
            if self._closing.wait(ASK_AGAIN_S) or time.monotonic() >= give_up_at:
                raise unavailable(self._store, failed) from failed

    def _refuse(self, starts: Sequence[Start], purged: Sequence[int]) -> None:
        for start, below in zip(starts, purged, strict=True):
            if start.offsets.base < below:
                raise PeerError(
                    f"group {self._group!r} starts {start.topic}-{start.partition} at offset {start.offsets.base}, and "
                    f"what was processed below {below} is purged from the store: those records would be skipped; set "
                    f"the group's offset to {below} or above, or use another group.id"
                )

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
            self._timer = threading.Timer(PURGE_EVERY_S, self._purge_in_time)
            self._timer.daemon = True
            self._timer.start()

    def _purge_in_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._closing.is_set() and not self._purge():
                self._note({})

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
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
                else:
                    for (topic, partition), offset in sorted(self._committed.items()):
                        transaction.purge(self._identities.scope(topic), partition, offset)
        except Exception as error:  # a database that does not answer
            logger.warning("identities could not be purged, and will be later: %s", line_of(error))
            self._disconnect()
            return False
        self._committed.clear()
        return True

    def _connected(self) -> OpenStore:
        if self._opened is None:
            self._opened = self._store.open()
            self._has_answered = True
        return self._opened

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


# --- what is kept of a record ---


class KeptRecords:
    """Records and their outputs, for `Transactions`."""

    def __init__(self, identities: Identities, own_topics: OwnTopics) -> None:
        self.identity_of = identities.of
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
