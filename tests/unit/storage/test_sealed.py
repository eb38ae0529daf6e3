from __future__ import annotations

import pytest

from keylane.errors import DataFolderError
from keylane.storage.sealed import read_sealed, write_sealed
from kit.filesystem import SimulatedFileSystem

VALUE = [{"name": "flights", "partitions": 8}, None, 3]


def test_a_value_comes_back() -> None:
    filesystem = SimulatedFileSystem()
    write_sealed(filesystem, "/state", "topics", VALUE)
    assert read_sealed(filesystem, "/state", "topics") == VALUE
    assert filesystem.read("/state").startswith(b"keylane topics 1 ")


def test_any_changed_byte_is_noticed() -> None:
    filesystem = SimulatedFileSystem()
    write_sealed(filesystem, "/state", "topics", VALUE)
    data = filesystem.read("/state")
    for position in range(len(data) - 1):  # the last byte ends the last line and holds nothing
        changed = bytearray(data)
        changed[position] ^= 0x01
        filesystem.write_atomic("/state", bytes(changed))
        with pytest.raises(DataFolderError, match="/state at byte"):
            read_sealed(filesystem, "/state", "topics")
    for size in range(len(data) - 1):
        filesystem.write_atomic("/state", data[:size])
        with pytest.raises(DataFolderError, match="/state at byte"):
            read_sealed(filesystem, "/state", "topics")


def test_another_kind_and_a_newer_version_are_told_apart() -> None:
    filesystem = SimulatedFileSystem()
    write_sealed(filesystem, "/state", "topics", VALUE)
    with pytest.raises(DataFolderError, match="not a keylane producer-ids file"):
        read_sealed(filesystem, "/state", "producer-ids")
    newer = filesystem.read("/state").replace(b"keylane topics 1 ", b"keylane topics 2 ")
    filesystem.write_atomic("/state", newer)
    with pytest.raises(DataFolderError, match="format version 2, and this keylane reads 1: a newer keylane wrote it"):
        read_sealed(filesystem, "/state", "topics")
