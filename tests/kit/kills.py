"""`Kills`: what a group had committed at each kill, to be held against what ran after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.outputs import Covered, Source, covered, outputs_of

if TYPE_CHECKING:
    from keylane.kafka.admin import Admin


@dataclass(frozen=True, slots=True)
class Kill:
    """What the group had committed right after a kill, and the ends of the output topic then."""

    what: str
    known: Covered
    ends: dict[int, int]


class Kills:
    """Of members of one group, whose handlers give each record one output in a topic of so many partitions."""

    def __init__(self, admin: Admin, servers: str, group: str, output: str, partitions: int) -> None:
        self._admin, self._servers, self._group, self._output = admin, servers, group, output
        self._partitions = partitions
        self._noted: list[Kill] = []

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, what: str) -> None:
        """Right after a kill."""
        known = covered(self._admin, self._group)
        ends = self._admin.log_ends(
            [(self._output, partition) for partition in range(self._partitions)], read_committed=False
        )
        self._noted.append(Kill(what, known, {partition: end or 0 for (_, partition), end in ends.items()}))

    def ran_again(self) -> list[tuple[str, Source]]:
        """Records that ran after a kill although a commit had been acknowledged for them before."""
        return [
            (kill.what, source)
            for partition, offset, source in outputs_of(self._servers, self._output)
            for kill in self._noted
            if offset >= kill.ends[partition] and source in kill.known
        ]
