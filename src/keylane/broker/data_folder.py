"""The data folder: whose it is, that nobody else uses it, and what lies where.

    meta.properties       format version, cluster id, node id, checksum: written last, so the folder is ours
    .lock                 locked (flock) while a broker runs
    topics.json           the topic registry
    producer-ids.json     the first producer id that was not handed out
    group-configs.json    what is set for single groups; there when something was
    broker-configs.json   options of the broker that were changed while it ran; there when one was
    leader-epoch.json     the leader epoch of the last start
    features.json         the levels of features; there when one was changed
    clean-shutdown.json   what a clean stop leaves, so that the next start need not read the logs
    topics/<topic>-<n>/   one folder a partition, with its segments
    coordinator/          the group coordinator's journal

What must be there is there from the first start on, so what is missing later was removed: it is refused by name.
A folder that is not empty and not ours is refused, and nothing in it is touched. docs/storage-format.md tells more.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.broker.config import parse_properties
from keylane.coordinator.journal.segments import MANIFEST, write_manifest
from keylane.errors import DataFolderError, UsageError, other_format
from keylane.storage.filesystem import TEMPORARY_SUFFIX
from keylane.storage.sealed import write_sealed

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileLock, FileSystem

FORMAT_VERSION = 3
FACTS_VERSION = 2
"""From this one on each log says which segments there must be."""
OLDEST_VERSION = 1
"""The oldest that is read; `keylane.broker.upgrade` makes it the newest."""
META = "meta.properties"
LOCK = ".lock"
TOPICS = "topics"
COORDINATOR = "coordinator"
REGISTRY = "topics.json"
REGISTRY_KIND = "topics"
PRODUCER_IDS = "producer-ids.json"
GROUP_CONFIGS = "group-configs.json"
BROKER_CONFIGS = "broker-configs.json"
LEADER_EPOCH = "leader-epoch.json"
FEATURES = "features.json"
CLEAN_SHUTDOWN = "clean-shutdown.json"
STATE_FILES = (META, REGISTRY, PRODUCER_IDS, GROUP_CONFIGS, BROKER_CONFIGS, LEADER_EPOCH, FEATURES)
"""Each is replaced as a whole; some may not be there."""
RESTORING = "restoring.json"
"""In a folder that a backup is being restored to."""
_FORMAT_KEY = "keylane.format.version"
_CHECKSUM_KEY = "keylane.crc32c"
"""Of all lines before it. Format 1 had none."""
_MANIFEST = f"{COORDINATOR}/{MANIFEST}"
REQUIRED = (REGISTRY, TOPICS, COORDINATOR, _MANIFEST)
"""Made by the first start, before `META`."""
_MADE_BEFORE_META = {LOCK, TOPICS, COORDINATOR, META + TEMPORARY_SUFFIX, REGISTRY, REGISTRY + TEMPORARY_SUFFIX}
"""What an interrupted first start leaves; the folder is still fresh when it holds nothing else."""
_MADE_IN_COORDINATOR = {MANIFEST, MANIFEST + TEMPORARY_SUFFIX}


class DataFolder(NamedTuple):
    """A folder that is ours and locked."""

    path: str
    cluster_id: str
    node_id: int
    lock: FileLock
    is_new: bool
    version: int = FORMAT_VERSION


def open_data_folder(filesystem: FileSystem, path: str, node_id: int) -> DataFolder:
    """Lock the folder and read whose it is; make it when it is missing or empty.

    Raises `DataFolderError` when it is another program's, in use, of a newer format, or of another node.
    """
    if not filesystem.exists(path):
        filesystem.mkdir(path)
    _check_identity(filesystem, path, node_id)
    lock = filesystem.lock(f"{path}/{LOCK}")
    if lock is None:
        raise DataFolderError(f"{path} is in use by another broker: stop that one, or give another --data-dir")
    try:
        found = _check_identity(filesystem, path, node_id)
        if found is not None:
            # A killed process may have renamed its files without syncing the names: what is read now must stay.
            filesystem.sync_dir(path)
            return DataFolder(path, found.cluster_id, node_id, lock, is_new=False, version=found.version)
        return DataFolder(path, _format(filesystem, path, node_id), node_id, lock, is_new=True)
    except BaseException:
        lock.release()
        raise


class Identity(NamedTuple):
    """Whose a folder is."""

    version: int
    cluster_id: str
    node_id: str


def _check_identity(filesystem: FileSystem, path: str, node_id: int) -> Identity | None:
    """A folder of ours; None for one that is still empty."""
    if not filesystem.is_dir(path):
        raise DataFolderError(f"{path} is not a folder: give another --data-dir")
    meta = f"{path}/{META}"
    if not filesystem.exists(meta):
        names = set(filesystem.listdir(path))
        if RESTORING in names:
            raise DataFolderError(f"{path}: a restore was not finished: run the same `keylane broker restore` again")
        is_fresh = (
            names <= _MADE_BEFORE_META
            and not (TOPICS in names and filesystem.listdir(f"{path}/{TOPICS}"))
            and not (COORDINATOR in names and {*filesystem.listdir(f"{path}/{COORDINATOR}")} - _MADE_IN_COORDINATOR)
        )
        if not is_fresh:
            raise DataFolderError(
                f"{path} is not empty and has no {META} of a keylane broker: give an empty or new folder as --data-dir"
            )
        return None
    identity = read_identity(filesystem, path)
    if identity.node_id != str(node_id):
        raise DataFolderError(
            f"{path} belongs to node.id={identity.node_id}, and this broker has node.id={node_id}: "
            "give that node.id, or another --data-dir"
        )
    return identity


def read_identity(filesystem: FileSystem, path: str) -> Identity:
    """What a folder says of itself. Raises `DataFolderError` when it is another program's, newer or damaged."""
    meta = f"{path}/{META}"
    try:
        text = filesystem.read(meta).decode()
        properties = parse_properties(text, meta)
    except (UnicodeDecodeError, UsageError) as error:
        raise DataFolderError(f"{meta} cannot be read: {error}") from error
    lines, checksum, _ = text.partition(f"{_CHECKSUM_KEY}=")
    if checksum and properties.get(_CHECKSUM_KEY) != f"{crc32c(lines.encode()):08x}":
        raise DataFolderError(f"{meta}: the checksum does not hold: the file is damaged; restore it from a copy")
    version = properties.get(_FORMAT_KEY)
    if version is None:
        raise DataFolderError(
            f"{path} belongs to another program ({META} has no {_FORMAT_KEY}): give another --data-dir"
        )
    if version not in map(str, range(OLDEST_VERSION, FORMAT_VERSION + 1)):
        raise DataFolderError(
            f"{path} has format version {version}, and this keylane reads {FORMAT_VERSION}: "
            f"{other_format(version, FORMAT_VERSION)}"
        )
    if int(version) > 1 and not checksum:
        raise DataFolderError(f"{meta} has no {_CHECKSUM_KEY}: restore the file from a copy")
    if not properties.get("cluster.id"):
        raise DataFolderError(f"{meta} has no cluster.id: restore the file from a copy")
    return Identity(int(version), properties["cluster.id"], properties.get("node.id", ""))


def missing(filesystem: FileSystem, path: str) -> list[str]:
    """The files and folders that every data folder has, and this one has not."""
    return [f"{path}/{name}" for name in REQUIRED if not filesystem.exists(f"{path}/{name}")]


def _format(filesystem: FileSystem, path: str, node_id: int) -> str:
    for name in (TOPICS, COORDINATOR):
        if not filesystem.exists(f"{path}/{name}"):
            filesystem.mkdir(f"{path}/{name}")
    write_sealed(filesystem, f"{path}/{REGISTRY}", REGISTRY_KIND, [])
    write_manifest(filesystem, f"{path}/{COORDINATOR}", 0)
    filesystem.sync_dir(path)
    filesystem.sync_dir(path.rpartition("/")[0] or "/")
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    write_meta(filesystem, path, cluster_id, node_id)
    return cluster_id


def write_meta(filesystem: FileSystem, path: str, cluster_id: str, node_id: int) -> None:
    """Say that the folder is ours, and of the newest format; durable on return."""
    lines = (
        "# The data folder of a keylane broker.\n"
        f"{_FORMAT_KEY}={FORMAT_VERSION}\ncluster.id={cluster_id}\nnode.id={node_id}\n"
    )
    checksum = f"{_CHECKSUM_KEY}={crc32c(lines.encode()):08x}\n"
    filesystem.write_atomic(f"{path}/{META}", (lines + checksum).encode())
