"""`keylane broker check` and `repair`: what the files of a data folder hold, and what can be kept of damaged ones.

A check changes nothing. What a crash leaves of unacknowledged writes is no damage: a start deals with it. A repair
gives up what is damaged and what stands behind it in the same log, and nothing else; each file that it changes or
removes is copied first, to a folder beside the data folder.
"""

from __future__ import annotations

import shutil
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker import data_folder
from keylane.broker.features import KIND as FEATURES_KIND
from keylane.broker.leader_epochs import KIND as LEADER_EPOCH_KIND
from keylane.broker.node import CLEAN_SHUTDOWN_KIND
from keylane.broker.producer_ids import KIND as PRODUCER_IDS_KIND
from keylane.broker.topic_files import KIND as TOPICS_KIND
from keylane.broker.topic_files import LIVE
from keylane.coordinator.journal.check import check_journal, salvage_snapshot
from keylane.coordinator.journal.segments import MANIFEST, SNAPSHOT_SUFFIX, last_segment, read_manifest, write_manifest
from keylane.errors import DataFolderError, UsageError
from keylane.storage.facts import FACTS_FILE, LogFacts
from keylane.storage.findings import Finding
from keylane.storage.open_log import base_of, check_log
from keylane.storage.recovery import check_segments, epochs_in
from keylane.storage.sealed import read_sealed
from keylane.storage.segment import SUFFIX, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from keylane.storage.filesystem import FileSystem

_SEALED = {
    data_folder.REGISTRY: TOPICS_KIND,
    data_folder.PRODUCER_IDS: PRODUCER_IDS_KIND,
    data_folder.LEADER_EPOCH: LEADER_EPOCH_KIND,
    data_folder.FEATURES: FEATURES_KIND,
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
    meta = f"{path}/{data_folder.META}"
    size = len(filesystem.read(meta))
    version = data_folder.FORMAT_VERSION
    try:
        version = data_folder.read_identity(filesystem, path).version
        yield Finding(meta, "sound", size, size)
    except DataFolderError as error:
        yield Finding(meta, "damaged", size, 0, str(error))
    has_facts = version >= data_folder.FACTS_VERSION
    if has_facts:
        for missing in data_folder.missing(filesystem, path):
            yield Finding(missing, "missing", reason="every data folder has it")
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
                name = f"{topic['name']}-{partition}"
                folder = f"{path}/{data_folder.TOPICS}/{name}"
                yield from check_log(filesystem, folder, has_facts=has_facts)
                yield from _shorter(filesystem, folder, sealed.get(data_folder.CLEAN_SHUTDOWN, {}).get(name))
    if filesystem.exists(f"{path}/{data_folder.COORDINATOR}"):
        yield from check_journal(filesystem, f"{path}/{data_folder.COORDINATOR}")


def _shorter(filesystem: FileSystem, folder: str, snapshot: dict[str, Any] | None) -> Iterator[Finding]:
    """The segments of a log that have lost bytes since a clean stop."""
    for base_offset, _, size, *_ in snapshot["segments"] if snapshot is not None else ():
        path = f"{folder}/{segment_name(base_offset)}"
        if filesystem.exists(path) and (found := len(filesystem.read(path))) < size:
            yield Finding(path, "damaged", found, found, f"it had {size} bytes at the last clean stop")


def repair_folder(filesystem: FileSystem, path: str) -> tuple[list[Repaired], list[Finding]]:
    """Mend what can be mended; what was done, and what is still bad. Raises as `check_folder` does. Blocks."""
    bad = [finding for finding in check_folder(filesystem, path) if finding.is_bad]
    copies = next(folder for folder in _copy_folders(path) if not folder.exists())
    done = []
    mends: Iterable[tuple[str, Callable[[], str]]] = (
        (finding.path, partial(_repair, filesystem, finding)) for finding in bad if _can_repair(path, finding)
    )
    for file, mend in chain(mends, _lists(filesystem, path, bad)):
        copy = copies / Path(file).relative_to(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if filesystem.exists(file):
            shutil.copy2(file, copy)
        done.append(Repaired(file, mend(), str(copy)))
    return done, [finding for finding in check_folder(filesystem, path) if finding.is_bad]


def _copy_folders(path: str) -> Iterator[Path]:
    return (Path(f"{path}.before-repair-{number}") for number in count(1))


def _can_repair(path: str, finding: Finding) -> bool:
    """What nothing else in the folder tells (whose it is, which topics there are, which producer ids, the levels of
    features) has to come from a copy; lists of what there is are made anew afterwards."""
    is_lost = finding.state == "missing" or finding.path in (
        f"{path}/{data_folder.META}",
        f"{path}/{data_folder.REGISTRY}",
        f"{path}/{data_folder.PRODUCER_IDS}",
        f"{path}/{data_folder.FEATURES}",
    )
    return not is_lost and Path(finding.path).name not in (FACTS_FILE, MANIFEST)


def _repair(filesystem: FileSystem, finding: Finding) -> str:
    folder, _, name = finding.path.rpartition("/")
    if name.endswith(SNAPSHOT_SUFFIX):
        number = int(name.removesuffix(SNAPSHOT_SUFFIX))
        lost = salvage_snapshot(filesystem, folder, number)
        return f"kept all parts but {lost} that do not hold, of up to 256 KiB of committed offsets each"
    if finding.state == "behind" or name in (data_folder.CLEAN_SHUTDOWN, data_folder.LEADER_EPOCH):
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


def _lists(filesystem: FileSystem, path: str, bad: Sequence[Finding]) -> Iterator[tuple[str, Callable[[], str]]]:
    """The files that say what there must be, where that is not what is left now, and what makes each of them anew."""
    folders = {finding.path.rpartition("/")[0] for finding in bad} | {finding.path for finding in bad}
    logs = sorted(folder for folder in folders if Path(folder).parent == Path(path, data_folder.TOPICS))
    for folder in logs:
        names = (
            [name for name in filesystem.listdir(folder) if name.endswith(SUFFIX)] if filesystem.exists(folder) else []
        )
        if names and (facts := _facts_of(filesystem, folder, names)) is not None:
            yield f"{folder}/{FACTS_FILE}", partial(_list_log, facts)
    coordinator = f"{path}/{data_folder.COORDINATOR}"
    if coordinator in folders and not _is_listed(filesystem, coordinator):
        yield f"{coordinator}/{MANIFEST}", partial(_list_journal, filesystem, coordinator)
    shutdown = f"{path}/{data_folder.CLEAN_SHUTDOWN}"
    if logs and filesystem.exists(shutdown):
        yield shutdown, partial(_remove, filesystem, shutdown)


def _facts_of(filesystem: FileSystem, folder: str, names: Sequence[str]) -> LogFacts | None:
    """What is true of these segments; None when it is written down already."""
    paths = [(f"{folder}/{name}", base_of(name)) for name in names]
    first, last = base_of(names[0]), base_of(names[-1])
    try:
        found = LogFacts.read(filesystem, folder)
    except DataFolderError:
        return LogFacts(filesystem, folder, start=first, last=last, epochs=epochs_in(filesystem, paths))
    _, end = check_segments(filesystem, paths, found.epochs)
    if first <= found.start <= end and found.last <= last:
        return None
    start = found.start if first <= found.start <= end else first
    return LogFacts(filesystem, folder, start=start, last=last, epochs=found.epochs)


def _list_log(facts: LogFacts) -> str:
    facts.write()
    return f"written anew: the log starts at offset {facts.start}, and its last segment at {facts.last}"


def _is_listed(filesystem: FileSystem, folder: str) -> bool:
    """Whether there is what the journal's list says."""
    if not filesystem.exists(f"{folder}/{MANIFEST}"):
        return False
    try:
        return read_manifest(filesystem, folder) <= last_segment(filesystem, folder)
    except DataFolderError:
        return False


def _list_journal(filesystem: FileSystem, folder: str) -> str:
    if not filesystem.exists(folder):
        filesystem.mkdir(folder)
        filesystem.sync_dir(folder.rpartition("/")[0])
    last = last_segment(filesystem, folder)
    write_manifest(filesystem, folder, last)
    return f"written anew: {f'the last segment is {last}' if last else 'no committed offsets, groups and transactions'}"


def _remove(filesystem: FileSystem, path: str) -> str:
    filesystem.remove(path)
    filesystem.sync_dir(path.rpartition("/")[0])
    return "removed: the next start reads the logs"
