"""`keylane broker check` and `repair`: what the files of a data folder hold, and what can be kept of damaged ones.

A check changes nothing. What a crash leaves of unacknowledged writes is no damage: a start deals with it. A repair
gives up what is damaged and what stands behind it in the same log, and nothing else; each file that it changes or
removes is copied first, to a folder beside the data folder.
"""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker import data_folder
from keylane.broker.node import CLEAN_SHUTDOWN_KIND
from keylane.broker.producer_ids import KIND as PRODUCER_IDS_KIND
from keylane.broker.topic_files import KIND as TOPICS_KIND
from keylane.broker.topic_files import LIVE
from keylane.coordinator.check import check_journal, salvage_snapshot
from keylane.coordinator.segments import SNAPSHOT_SUFFIX
from keylane.errors import DataFolderError, UsageError
from keylane.storage.findings import Finding
from keylane.storage.log import START_FILE
from keylane.storage.open_log import check_log
from keylane.storage.sealed import read_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.storage.filesystem import FileSystem

_SEALED = {
    data_folder.REGISTRY: TOPICS_KIND,
    data_folder.PRODUCER_IDS: PRODUCER_IDS_KIND,
    data_folder.CLEAN_SHUTDOWN: CLEAN_SHUTDOWN_KIND,
}


class Repaired(NamedTuple):
    """What became of one file."""

    path: str
    done: str
    """One line: what was cut off or removed."""
    copy: str
    """Where the file is as it was."""


def check_folder(filesystem: FileSystem, path: str) -> list[Finding]:
    """Every file of a data folder that no broker uses. Raises `UsageError` for another one, and `DataFolderError`."""
    if not filesystem.is_dir(path) or not filesystem.exists(f"{path}/{data_folder.META}"):
        raise UsageError(f"{path} is no data folder of a keylane broker: it has no {data_folder.META}")
    lock = filesystem.lock(f"{path}/{data_folder.LOCK}")
    if lock is None:
        raise DataFolderError(f"{path} is in use by a broker: stop it first")
    try:
        return list(_findings(filesystem, path))
    finally:
        lock.release()


def _findings(filesystem: FileSystem, path: str) -> Iterator[Finding]:
    sealed = {}
    for name, kind in _SEALED.items():
        file = f"{path}/{name}"
        if filesystem.exists(file):
            size = len(filesystem.read(file))
            try:
                sealed[name] = read_sealed(filesystem, file, kind)
                yield Finding(file, "sound", size, size)
            except DataFolderError as error:
                yield Finding(file, "damaged", size, 0, str(error))
    for topic in sealed.get(data_folder.REGISTRY, []):
        if topic["state"] == LIVE:
            for partition in range(topic["partitions"]):
                yield from check_log(filesystem, f"{path}/{data_folder.TOPICS}/{topic['name']}-{partition}")
    yield from check_journal(filesystem, f"{path}/{data_folder.COORDINATOR}")


def repair_folder(filesystem: FileSystem, path: str) -> tuple[list[Repaired], list[Finding]]:
    """Mend what can be mended; what was done, and what is still bad. Raises as `check_folder` does. Blocks."""
    bad = [finding for finding in check_folder(filesystem, path) if finding.is_bad]
    copies = next(folder for folder in _copy_folders(path) if not folder.exists())
    done = []
    for finding in bad:
        if not _can_repair(path, finding):
            continue
        copy = copies / Path(finding.path).relative_to(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(finding.path, copy)
        done.append(Repaired(finding.path, _repair(filesystem, finding), str(copy)))
    return done, [finding for finding in check_folder(filesystem, path) if finding.is_bad]


def _copy_folders(path: str) -> Iterator[Path]:
    return (Path(f"{path}.before-repair-{number}") for number in count(1))


def _can_repair(path: str, finding: Finding) -> bool:
    """What nothing else in the folder tells (which topics there are, which producer ids) has to come from a copy."""
    is_lost = finding.state == "missing" or finding.path in (
        f"{path}/{data_folder.REGISTRY}",
        f"{path}/{data_folder.PRODUCER_IDS}",
    )
    return not is_lost


def _repair(filesystem: FileSystem, finding: Finding) -> str:
    folder, _, name = finding.path.rpartition("/")
    if name.endswith(SNAPSHOT_SUFFIX):
        number = int(name.removesuffix(SNAPSHOT_SUFFIX))
        lost = salvage_snapshot(filesystem, folder, number)
        return f"kept all parts but {lost} that do not hold, of up to 256 KiB of committed offsets each"
    if finding.state == "behind" or name in (data_folder.CLEAN_SHUTDOWN, START_FILE):
        filesystem.remove(finding.path)
        filesystem.sync_dir(folder)
        return f"removed, {finding.size} bytes: {finding.reason}"
    file = filesystem.open_append(finding.path)
    try:
        file.truncate(finding.position)
        file.sync()
    finally:
        file.close()
    return f"cut at byte {finding.position}, {finding.size - finding.position} bytes off: {finding.reason}"
