"""`GroupCommits`: commits for the group of a query with a built-in sink, from Spark's progress events.

The idea: Spark tells listeners where each batch has ended once its checkpoint has it; that is what the group is told.
It works for the source `keylane` and for Spark's own Kafka connector, whose source never commits (SPARK-27549).
"""

from __future__ import annotations

import ast
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import KeylaneError, PeerError, UsageError
from keylane.offsets import OffsetMap
from keylane.spark.structured.acknowledged import INSTANCE_ID, to_commit
from keylane.spark.structured.plans import Plan, complete_in_both, group_offsets, is_plan
from keylane.spark.structured.query_events import QueryListener
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.kafka.admin import Admin
    from keylane.kafka.sole_member import SoleMember
    from keylane.spark.structured.options import TopicPartition

logger = logger_of(__name__)

LOOK_MS = 2_000
"""How long it is asked who leads a partition: a commit without that is better than one that is late."""


class GroupCommits(QueryListener):
    """`spark.streams.addListener(GroupCommits({"bootstrap.servers": …, "group.id": …}, query="name"))`.

    - `kafka`: librdkafka settings with the group; this driver becomes its one member.
    - `query`: the name (`queryName`) of the query whose progress counts; None takes every query of the session, which
      must then be one.

    A commit that fails is logged, and made up for by the next batch's; a listener cannot fail a query. Once another
    driver has taken the group over, nothing more is committed. For queries with `foreachBatch`, use `acknowledged`.

    Raises `UsageError` when the settings name no broker or no group.
    """

    wants_progress = True

    def __init__(self, kafka: Mapping[str, Any], *, query: str | None = None) -> None:
        for name in ("bootstrap.servers", "group.id"):
            if not kafka.get(name):
                raise UsageError(f"kafka[{name!r}] is missing: give it to GroupCommits")
        self._kafka = dict(kafka)
        self._query = query
        self._member: SoleMember | None = None
        self._admin: Admin | None = None
        self._run_id: str | None = None
        """Of the query's run that was heard of last."""
        self._stopped = False
        self._compared: dict[str, str] = {}
        """By topic, the id in a plan that was held against the group's cluster last."""
        self._elsewhere: set[str] = set()
        """Topics that have another id there."""
        self._using = threading.Lock()
        """Guards the member: Spark's thread tells of progress while the caller closes."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's names
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        ended: dict[TopicPartition, OffsetMap] = {}
        epochs: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        for source in progress.sources:
            maps, known, known_ids = ended_at(source.endOffset)
            ids |= known_ids
            for name, one in maps.items():
                ended[name] = complete_in_both(ended[name], one) if name in ended else one
            for name, epoch in known.items():
                epochs[name] = min(epoch, epochs.get(name, epoch))
        if not ended:
            return
        self._run_id = str(progress.runId)
        with self._using:
            if self._stopped:
                return
            try:
                self._compare(ids)
                ended = {name: one for name, one in ended.items() if name[0] not in self._elsewhere}
                if not ended:
                    return
                member = self._joined({topic for topic, _ in ended})
                member.commit(to_commit(ended, epochs or self._epochs(ended)))
            except KeylaneError:
                logger.exception("nothing more is committed for group %r", self._kafka["group.id"])
                self._stopped = True

    def _compare(self, ids: Mapping[str, str]) -> None:
        """Offsets mean nothing in a topic of another id: nothing is committed there."""
        new = {topic: known for topic, known in ids.items() if self._compared.get(topic) != known}
        if not new:
            return
        try:
            there = self._asked().topic_ids(new)
        except PeerError as error:
            logger.info("group %r: the topics' ids are not compared: %s", self._kafka["group.id"], error)
            return
        self._compared |= new
        self._elsewhere -= new.keys()
        for topic, known in new.items():
            if there.get(topic, known) != known:
                self._elsewhere.add(topic)
                logger.error(
                    "group %r: the topic %s that the query reads is another one than that at %s: nothing is committed "
                    "of it; give GroupCommits the brokers of the query's source",
                    self._kafka["group.id"],
                    topic,
                    self._kafka["bootstrap.servers"],
                )

    def _asked(self) -> Admin:
        if self._admin is None:
            from keylane.kafka.admin import Admin

            self._admin = Admin(self._kafka, timeout_ms=LOOK_MS)
        return self._admin

    def _epochs(self, ended: Mapping[TopicPartition, OffsetMap]) -> dict[TopicPartition, int]:
        """Of the leaders of now, for a source that does not know them."""
        try:
            led = self._asked().led_log_ends(ended, read_committed=False)
        except PeerError as error:
            logger.info("group %r: this commit has no leader epoch: %s", self._kafka["group.id"], error)
            return {}
        return {name: one.leader_epoch for name, one in led.items() if one is not None and one.leader_epoch >= 0}

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if str(event.runId) == self._run_id:
            with self._using:
                self._leave()

    def close(self) -> None:
        """Leave the group and commit nothing more. For a listener that is removed before its query has ended: it does
        not hear of that end."""
        with self._using:
            self._stopped = True
            self._leave()

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _joined(self, topics: set[str]) -> SoleMember:
        if self._member is None:
            from keylane.kafka.sole_member import SoleMember

            self._member = SoleMember(self._kafka, topics, INSTANCE_ID)
        return self._member


class Ended(NamedTuple):
    """What a source's `endOffset` says."""

    maps: dict[TopicPartition, OffsetMap]
    epochs: dict[TopicPartition, int]
    """Of the leaders, as far as the source knows them; so are the topics' ids."""
    ids: dict[str, str]


NOTHING = Ended({}, {}, {})


def ended_at(text: str | None) -> Ended:
    """Where a source's `endOffset` has its partitions; nothing for a source that is not Kafka."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        try:
            value = ast.literal_eval(text or "")  # PySpark before 4.2 gives the text of a dict
        except (ValueError, SyntaxError):
            return NOTHING
    if not isinstance(value, dict):
        return NOTHING
    if is_plan(value):
        plan = Plan.from_json(value)
        return Ended(group_offsets(plan), dict(plan.epochs), dict(plan.ids))
    offsets = {}
    for topic, partitions in value.items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else ():
            if not partition.isdecimal() or not isinstance(offset, int):
                return NOTHING
            offsets[topic, int(partition)] = OffsetMap(offset)
    return Ended(offsets, {}, {})
