from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.broker.data_folder import META, open_data_folder
from keylane.errors import DataFolderError
from keylane.storage.filesystem import OsFileSystem
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_new_folder_becomes_ours_and_stays_so(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "data"
    if is_there:
        path.mkdir()
    first = open_data_folder(OsFileSystem(), str(path), 1)
    assert first.is_new
    assert len(first.cluster_id) == 22
    first.lock.release()
    second = open_data_folder(OsFileSystem(), str(path), 1)
    assert not second.is_new
    assert second.cluster_id == first.cluster_id
    second.lock.release()


def test_two_brokers_never_share_a_folder(tmp_path: Path) -> None:
    first = open_data_folder(OsFileSystem(), str(tmp_path), 1)
    with pytest.raises(DataFolderError, match="in use by another broker"):
        open_data_folder(OsFileSystem(), str(tmp_path), 1)
    first.lock.release()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"photo.jpg": "x"}, "is not empty and has no meta.properties of a keylane broker"),
        ({"topics/flights-0/x.log": "x"}, "is not empty"),
        ({META: "version=1\ncluster.id=abc\nnode.id=1\n"}, "belongs to another program"),
        (
            {META: "keylane.format.version=4\ncluster.id=abc\nnode.id=1\n"},
            "format version 4, and this keylane reads 3: a newer keylane wrote it: use that version, or",
        ),
        (
            {META: "keylane.format.version=0\ncluster.id=abc\nnode.id=1\n"},
            "format version 0, and this keylane reads 3: an older keylane wrote it: use that version$",
        ),
        (
            {META: "keylane.format.version=x\ncluster.id=abc\nnode.id=1\n"},
            "format version x, and this keylane reads 3: that is no version: the file is damaged",
        ),
        ({META: "keylane.format.version=2\ncluster.id=abc\nnode.id=1\n"}, r"has no keylane\.crc32c"),
        ({META: "keylane.format.version=1\ncluster.id=abc\nnode.id=7\n"}, "belongs to node.id=7"),
        ({META: "keylane.format.version=1\nnode.id=1\n"}, "has no cluster.id"),
        ({META: "keylane.format.version\n"}, "cannot be read"),
    ],
)
def test_a_folder_that_is_not_ours_is_refused_untouched(tmp_path: Path, files: dict[str, str], says: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(DataFolderError, match=says) as caught:
        open_data_folder(OsFileSystem(), str(tmp_path), 1)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(DataFolderError, match="is not a folder"):
        open_data_folder(OsFileSystem(), str(tmp_path / "data"), 1)


def test_a_crash_during_the_first_start_leaves_a_folder_that_can_be_opened() -> None:
    whole = SimulatedFileSystem()
    open_data_folder(whole, "/data", 1)
    for operation in range(1, whole.operations + 1):
        crashing = SimulatedFileSystem()
        crashing.crash_at(operation)
        with pytest.raises(SimulatedCrashError):
            open_data_folder(crashing, "/data", 1)
        for found in (crashing.after_crash(), crashing.after_crash(names="kept", content="torn")):
            open_data_folder(found, "/data", 1)
