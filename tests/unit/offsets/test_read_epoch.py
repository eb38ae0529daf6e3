"""Which leader epoch a commit may carry."""

from __future__ import annotations

from keylane.offsets import OffsetMap
from keylane.offsets.read_epoch import ReadEpoch


def test_the_newest_record_that_was_read_says_it() -> None:
    epoch = ReadEpoch(OffsetMap(5), 2)
    seen = []
    for offset, of_record in ((5, 2), (6, None), (7, 4), (8, 3)):
        epoch.observe(offset, of_record)
        seen.append(epoch.value)
    assert seen == [2, 2, 4, 4]


def test_beside_a_map_without_one_there_is_none_before_the_maps_end_was_read() -> None:
    epoch = ReadEpoch(OffsetMap(1, [1, 3], 15))
    seen = []
    for offset in (1, 3, 14, 15):
        epoch.observe(offset, 7)
        seen.append(epoch.value)
    assert seen == [-1, -1, -1, 7]
