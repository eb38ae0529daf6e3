"""`KeptTopic`: a topic of a group's operations, made where it is missing, known again, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.memory_topics import faults

if TYPE_CHECKING:
    from keylane.kafka.admin import Admin
    from keylane.kafka.memory_topics import Need


class KeptTopic:
    """One of them. Raises `PeerError` for what a broker refuses, and `BrokerUnavailableError`.

    Thread safety: one thread at a time.
    """

    def __init__(self, admin: Admin, name: str, need: Need) -> None:
        self.name = name
        self._admin = admin
        self._need = need
        self._id: str | None = None

    @property
    def how_to_make(self) -> str:
        """The command."""
        configs = " ".join(f"--config {name}={value}" for name, value in self._need.config.items())
        return f"keylane topics create {self.name} --partitions 1 {configs}"

    def make(self) -> None:
        """See that it is there."""
        self._admin.create_topics({self.name: 1}, replication_factor=-1, config=self._need.config)
        self._id = self._known_id()

    def is_another(self, read_to: int) -> bool:
        """Whether it is another topic than the last time, or an older copy of it, which ends before what was read of
        it; one that is missing is made."""
        before, found = self._id, self._known_id()
        if found is None:
            self.make()
            return True
        self._id = found
        if before not in (None, found):
            return True
        end = self._admin.log_ends([(self.name, 0)], read_committed=False).get((self.name, 0)) if read_to else None
        return end is not None and end < read_to

    def faults(self) -> str:
        """What is wrong with it; empty where nothing is, or where the member may not look."""
        try:
            partitions = self._admin.topics().get(self.name, 1)
            return "; ".join(faults(self._need, self._admin.topic_settings(self.name), partitions))
        except BrokerUnavailableError:
            raise
        except PeerError:
            return ""

    def _known_id(self) -> str | None:
        """None for a topic that is missing."""
        try:
            return self._admin.topic_id(self.name)
        except BrokerUnavailableError:
            raise
        except PeerError:
            if self.name in self._admin.topics():
                raise
            return None
