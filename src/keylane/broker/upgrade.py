"""A data folder of an older format, made one of the newest.

Format 1 did not say which segments there must be (docs/adr/0080). So what is found is taken for all there was; from
here on, what is missing is refused. Format 2 had one leader epoch, 0: its files are read as they are, and only the
number keeps a keylane that knows no other epoch from taking the next ones for damage. It is written last: a crash on
the way leaves a folder of the older format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.broker import data_folder
from keylane.broker.topic_files import KIND, LIVE
from keylane.coordinator.journal.segments import last_segment, write_manifest
from keylane.storage.facts import LogFacts
from keylane.storage.open_log import base_of, segment_names
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileSystem

START_FILE = "log-start.json"
"""In a partition's folder, where records were deleted up to an offset inside a segment: that offset."""
START_KIND = "log-start"


def upgrade(filesystem: FileSystem, folder: data_folder.DataFolder) -> None:
    """Durable on return. Raises `DataFolderError` for damage. Blocks."""
    starts = _write_facts(filesystem, folder) if folder.version < data_folder.FACTS_VERSION else []
    data_folder.write_meta(filesystem, folder.path, folder.cluster_id, folder.node_id)
    for path in starts:
        filesystem.remove(path)


def _write_facts(filesystem: FileSystem, folder: data_folder.DataFolder) -> list[str]:
    """Write down what there must be; the files that say a part of it, and are no longer needed."""
    registry = f"{folder.path}/{data_folder.REGISTRY}"
    logs = f"{folder.path}/{data_folder.TOPICS}"
    if not filesystem.exists(registry) and not filesystem.listdir(logs):
        write_sealed(filesystem, registry, KIND, [])
    topics = read_sealed(filesystem, registry, KIND) if filesystem.exists(registry) else []
    starts = []
    for topic in topics:
        if topic["state"] != LIVE:
            continue
        for partition in range(topic["partitions"]):
            log = f"{logs}/{topic['name']}-{partition}"
            names = segment_names(filesystem, log)
            start, start_file = base_of(names[0]), f"{log}/{START_FILE}"
            if filesystem.exists(start_file):
                start = max(start, read_sealed(filesystem, start_file, START_KIND))
                starts.append(start_file)
            LogFacts(filesystem, log, start=start, last=base_of(names[-1])).write()
    coordinator = f"{folder.path}/{data_folder.COORDINATOR}"
    write_manifest(filesystem, coordinator, last_segment(filesystem, coordinator))
    return starts
