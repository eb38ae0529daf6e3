"""What the driver asks the broker about the pipeline's topics and group. Lanes ask for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.logs import matching
from keylane.patterns import is_pattern

if TYPE_CHECKING:
    from keylane.pipeline import Pipeline


class Group:
    """The group and topics of one pipeline. Every method raises `BrokerUnavailableError` when no broker answers."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._admin = Admin(pipeline.kafka)
        self._servers = pipeline.kafka["bootstrap.servers"]
        self._group = pipeline.group_id
        self._topics = pipeline.subscription
        self._assignment = pipeline.assignment

    def end_offsets(self) -> dict[tuple[str, int], int]:
        """The log end of every partition. Raises `UsageError` for a topic that does not exist."""
        named = [one for one in self._topics if not is_pattern(one)]
        named += [topic for topic, _ in self._assignment]
        known = self._admin.topics(named)
        for topic in named:
            if topic not in known:
                raise UsageError(f"topic {topic!r} does not exist at {self._servers}: create it, or correct its name")
        subscribed = matching(self._topics, list(known))
        partitions = [(topic, number) for topic in subscribed for number in range(known[topic])]
        partitions += self._assignment
        return {name: end or 0 for name, end in self._admin.log_ends(partitions, read_committed=False).items()}

    def committed(self) -> dict[tuple[str, int], int]:
        """What the group has committed of the pipeline's topics."""
        found = self._admin.committed_offsets(self._group)
        ours = set(matching(self._topics, [topic for topic, _ in found]))
        return {name: one.offset for name, one in found.items() if name[0] in ours or name in self._assignment}

    def member_ids(self) -> dict[str, str]:
        """The member ids of the group's static members, by their group instance ids."""
        members = self._admin.describe_group(self._group).members
        return {one.group_instance_id: one.member_id for one in members if one.group_instance_id is not None}
