"""The replay of the journal's tail: what a start does with the segments behind the last snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.formats import RecordFormatError
from keylane.coordinator.journal.batch_replay import Replayer
from keylane.coordinator.journal.headers import JournalDamagedError
from keylane.coordinator.journal.segments import POSITION_BITS
from keylane.coordinator.journal.single_commit_replay import SingleCommits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.segments import SegmentReader, View


class TailReplay:
    """Brings frames, in the journal's order, into an image and the views of the offsets partitions."""

    def __init__(self, image: Image, views: Mapping[int, View]) -> None:
        self._views = views
        self._singles = SingleCommits(image.store, views)
        self._replayer = Replayer(image)

    def replay(self, reader: SegmentReader, number: int, stop: int) -> bool:
        """What begins before byte `stop` of this segment; whether there may be more.

        Raises `JournalDamagedError`.
        """
        while reader.end < stop:
            reader.end = self._singles.replay(reader.data, reader.end, stop, number << POSITION_BITS)
            if not self._replay_next(reader, number):
                return False
        return True

    def _replay_next(self, reader: SegmentReader, number: int) -> bool:
        """Any one frame; False at the end."""
        frame = next(iter(reader), None)
        if frame is None:
            return False
        position, partition, base_offset, last_offset_delta, batch = frame
        view = self._views.get(partition)
        if view is None or base_offset != view.appended:
            raise JournalDamagedError(reader.path, position, _misplaced(partition, base_offset, view))
        view.append(base_offset, base_offset + last_offset_delta + 1, number << POSITION_BITS | position)
        try:
            self._replayer.replay(partition, batch)
        except RecordFormatError as error:  # its checksums hold, but this release did not write it
            raise JournalDamagedError(reader.path, position, str(error)) from error
        return True


def _misplaced(partition: int, base_offset: int, view: View | None) -> str:
    if view is None:
        return f"a frame of offsets partition {partition}"
    return f"offset {base_offset} of offsets partition {partition}, where {view.appended} is due"
