"""One suite for both implementations of the file-system port, and what only the simulated one does."""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING

import pytest

from keylane.storage.filesystem import FILL, NO_ROOM, TOLD_EVERY_S, DiskFullError, FileSystem, FullDisk, OsFileSystem
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["os", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    filesystem = SimulatedFileSystem()
    filesystem.mkdir("/work")
    return filesystem, "/work"


def test_append_read_truncate(place: tuple[FileSystem, str]) -> None:
    filesystem, folder = place
    file = filesystem.open_append(f"{folder}/a")
    assert file.path == f"{folder}/a"
    file.write(b"abc")
    file.write(memoryview(b"defgh")[1:])
    file.sync()
    assert file.size == 7
    assert file.read(2, 3) == b"cef"
    assert file.read(5, 100) == b"gh"
    assert file.read(7, 1) == b""
    file.truncate(4)
    file.write(b"Z")
    assert file.size == 5
    file.close()
    again = filesystem.open_append(f"{folder}/a")
    assert again.size == 5
    assert filesystem.read(f"{folder}/a") == b"abceZ"
    again.close()


def test_a_reserve_is_behind_the_content(place: tuple[FileSystem, str]) -> None:
    filesystem, folder = place
    file = filesystem.open_append(f"{folder}/a")
    file.write(b"abc")
    file.reserve(10)
    file.write(b"de")
    assert (file.size, file.reserved) == (5, 10)
    assert file.read(2, 100) == b"cde", "content ends before the reserve"
    assert filesystem.read(f"{folder}/a") == b"abcde" + FILL * 5
    file.write(b"0123456789")
    assert (file.size, file.reserved) == (15, 15), "and goes on behind it"
    file.reserve(1)
    assert filesystem.read(f"{folder}/a") == b"abcde0123456789"
    file.reserve(20)
    file.truncate(file.size)
    assert (file.size, file.reserved) == (15, 15)
    file.close()
    large = filesystem.open_append(f"{folder}/b")
    large.reserve(3_000_000)
    large.close()
    assert filesystem.read(f"{folder}/b") == FILL * 3_000_000


def test_folders_and_names(place: tuple[FileSystem, str]) -> None:
    filesystem, folder = place
    filesystem.mkdir(f"{folder}/d")
    with pytest.raises(FileExistsError):
        filesystem.mkdir(f"{folder}/d")
    filesystem.open_append(f"{folder}/d/x").close()
    filesystem.open_append(f"{folder}/b").close()
    filesystem.sync_dir(f"{folder}/d")
    assert filesystem.listdir(folder) == ["b", "d"]
    assert filesystem.is_dir(f"{folder}/d")
    assert not filesystem.is_dir(f"{folder}/b")
    assert filesystem.exists(f"{folder}/d/x")
    filesystem.rename(f"{folder}/b", f"{folder}/c")
    filesystem.remove_tree(f"{folder}/d")
    assert filesystem.listdir(folder) == ["c"]
    filesystem.remove(f"{folder}/c")
    assert not filesystem.exists(f"{folder}/c")
    with pytest.raises(FileNotFoundError):
        filesystem.read(f"{folder}/c")


def test_write_atomic_replaces_the_whole_file(place: tuple[FileSystem, str]) -> None:
    filesystem, folder = place
    filesystem.write_atomic(f"{folder}/state", b"a long first content")
    filesystem.write_atomic(f"{folder}/state", b"short")
    assert filesystem.read(f"{folder}/state") == b"short"
    assert filesystem.listdir(folder) == ["state"]


def test_a_lock_is_exclusive_until_it_is_released(place: tuple[FileSystem, str]) -> None:
    filesystem, folder = place
    lock = filesystem.lock(f"{folder}/.lock")
    assert lock is not None
    assert filesystem.lock(f"{folder}/.lock") is None
    lock.release()
    again = filesystem.lock(f"{folder}/.lock")
    assert again is not None
    again.release()


def test_a_crash_forgets_names_and_bytes_that_were_not_synced() -> None:
    filesystem = SimulatedFileSystem()
    file = filesystem.open_append("/a")
    file.write(b"durable")
    file.sync()
    assert not filesystem.after_crash().exists("/a"), "its name was never synced"
    filesystem.sync_dir("/")
    file.write(b"1234")
    assert filesystem.after_crash().read("/a") == b"durable"
    assert filesystem.after_crash(content="kept").read("/a") == b"durable1234"
    assert filesystem.after_crash(content="torn", torn_share=0.5).read("/a") == b"durable12"
    assert filesystem.after_crash(content="zeroed").read("/a") == b"durable\0\0\0\0"


def test_a_crash_leaves_the_reserve_where_content_was_lost() -> None:
    filesystem = SimulatedFileSystem()
    file = filesystem.open_append("/a")
    filesystem.sync_dir("/")
    file.write(b"a" * 300)
    file.reserve(2_048)
    file.write(b"b" * 1_000)
    found = {
        "lost": b"a" * 300 + FILL * 1_748,
        "kept": b"a" * 300 + b"b" * 1_000 + FILL * 748,
        "torn": b"a" * 300 + b"b" * 500 + FILL * 1_248,
        "zeroed": b"a" * 300 + FILL * 1_748,
    }
    for content, expected in found.items():
        assert filesystem.after_crash(content=content).read("/a") == expected, content  # type: ignore[arg-type]
    odd = b"a" * 300 + FILL * 212 + b"b" * 512 + FILL * 1_024
    assert filesystem.after_crash(content="scattered", torn_share=1.0).read("/a") == odd
    even = b"a" * 300 + b"b" * 212 + FILL * 512 + b"b" * 276 + FILL * 748
    assert filesystem.after_crash(content="scattered", torn_share=0.0).read("/a") == even


def test_an_atomic_write_is_whole_or_not_at_all_at_every_operation() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.write_atomic("/state", b"old")
    start = filesystem.operations
    filesystem.write_atomic("/state", b"new")
    for operation in range(start + 1, filesystem.operations + 1):
        crashing = SimulatedFileSystem()
        crashing.write_atomic("/state", b"old")
        crashing.crash_at(operation)
        with pytest.raises(SimulatedCrashError):
            crashing.write_atomic("/state", b"new")
        for found in (crashing.after_crash(), crashing.after_crash(names="kept", content="torn")):
            assert found.read("/state") in (b"old", b"new")


def test_faults_come_where_they_were_asked_for() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.fail_at(2, OSError(errno.ENOSPC, "no space left"))
    file = filesystem.open_append("/a")
    with pytest.raises(OSError, match="no space left"):
        file.write(b"abcd")
    assert file.size == 2, "a failed write may leave some of its bytes"
    filesystem.crash_at(3)
    for _ in range(2):
        with pytest.raises(SimulatedCrashError):
            file.sync()
    assert filesystem.history == ["create /a", "write /a", "sync /a"]


def test_a_full_disk_is_told_once_with_path_and_sizes_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("keylane.storage.filesystem.time.monotonic", lambda: now)
    path = tmp_path / "file"
    path.write_bytes(bytes(30))
    disk = FullDisk()
    full = OSError(errno.ENOSPC, "No space left on device")
    for _ in range(5):
        error = disk.refuse(str(path), 17, full)
        assert (error.errno, error.filename) == (errno.ENOSPC, str(path))
    (told,) = caplog.messages
    assert told.startswith(
        f"{path}: No space left on device: no room for 17 bytes more (the file has 30, the disk has "
    )
    now += TOLD_EVERY_S
    disk.refuse(str(path), 17, full)
    assert "and 4 writes before this one since the last such line" in caplog.messages[1]


@pytest.mark.parametrize("number", sorted(NO_ROOM))
def test_only_want_of_room_is_a_full_disk(number: int, tmp_path: Path) -> None:
    disk = FullDisk()
    with pytest.raises(DiskFullError), disk.watch(str(tmp_path / "file"), 1):
        raise OSError(number, "no")
    with pytest.raises(OSError, match="broken") as other, disk.watch(str(tmp_path / "file"), 1):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(other.value, DiskFullError)


def test_a_process_without_descriptors_has_no_room_for_now(tmp_path: Path) -> None:
    """Nothing was changed then, and the next try may succeed."""
    filesystem, file = OsFileSystem(), str(tmp_path / "file")
    filesystem.write_atomic(file, b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for change in (
            lambda: filesystem.open_append(str(tmp_path / "new")),
            lambda: filesystem.write_atomic(file, b"after"),
            lambda: filesystem.sync_dir(str(tmp_path)),
        ):
            with pytest.raises(DiskFullError, match="Too many open files"):
                change()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert filesystem.listdir(str(tmp_path)) == ["file"]
    assert filesystem.read(file) == b"before"
    filesystem.write_atomic(file, b"after")
    assert filesystem.read(file) == b"after"
