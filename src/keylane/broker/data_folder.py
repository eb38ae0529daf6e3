"""The data folder: whose it is, that nobody else uses it, and what lies where.

    meta.properties       format version, cluster id, node id: written last, so it says that the folder is ours
    .lock                 locked (flock) while a broker runs
    topics.json           the topic registry
    producer-ids.json     the first producer id that was not handed out
    clean-shutdown.json   what a clean stop leaves, so that the next start need not read the logs
    topics/<topic>-<n>/   one folder a partition, with its segments
    coordinator/          the group coordinator's journal

A folder that is not empty and not ours is refused, and nothing in it is touched. docs/storage-format.md tells more.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.config import parse_properties
from keylane.errors import DataFolderError, UsageError, other_format

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileLock, FileSystem

FORMAT_VERSION = 1
META = "meta.properties"
LOCK = ".lock"
TOPICS = "topics"
COORDINATOR = "coordinator"
REGISTRY = "topics.json"
PRODUCER_IDS = "producer-ids.json"
CLEAN_SHUTDOWN = "clean-shutdown.json"
_FORMAT_KEY = "keylane.format.version"
_MADE_BEFORE_META = {LOCK, TOPICS, COORDINATOR, META + ".tmp"}
"""What an interrupted first start leaves; the folder is still fresh when it holds nothing else."""


class DataFolder(NamedTuple):
    """A folder that is ours and locked."""

    path: str
    cluster_id: str
    node_id: int
    lock: FileLock
    is_new: bool


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
            return DataFolder(path, found, node_id, lock, is_new=False)
        return DataFolder(path, _format(filesystem, path, node_id), node_id, lock, is_new=True)
    except BaseException:
        lock.release()
        raise


def _check_identity(filesystem: FileSystem, path: str, node_id: int) -> str | None:
    """The cluster id of a folder of ours; None for one that is still empty."""
    if not filesystem.is_dir(path):
        raise DataFolderError(f"{path} is not a folder: give another --data-dir")
    meta = f"{path}/{META}"
    if not filesystem.exists(meta):
        names = set(filesystem.listdir(path))
        is_fresh = names <= _MADE_BEFORE_META and not any(
            filesystem.listdir(f"{path}/{name}") for name in names & {TOPICS, COORDINATOR}
        )
        if not is_fresh:
            raise DataFolderError(
                f"{path} is not empty and has no {META} of a keylane broker: give an empty or new folder as --data-dir"
            )
        return None
    try:
        properties = parse_properties(filesystem.read(meta).decode(), meta)
    except (UnicodeDecodeError, UsageError) as error:
        raise DataFolderError(f"{meta} cannot be read: {error}") from error
    version = properties.get(_FORMAT_KEY)
    if version is None:
        raise DataFolderError(
            f"{path} belongs to another program ({META} has no {_FORMAT_KEY}): give another --data-dir"
        )
    if version != str(FORMAT_VERSION):
        raise DataFolderError(
            f"{path} has format version {version}, and this keylane reads {FORMAT_VERSION}: "
            f"{other_format(version, FORMAT_VERSION)}"
        )
    if properties.get("node.id") != str(node_id):
        raise DataFolderError(
            f"{path} belongs to node.id={properties.get('node.id')}, and this broker has node.id={node_id}: "
            "give that node.id, or another --data-dir"
        )
    if not properties.get("cluster.id"):
        raise DataFolderError(f"{meta} has no cluster.id: restore the file from a copy")
    return properties["cluster.id"]


def _format(filesystem: FileSystem, path: str, node_id: int) -> str:
    for name in (TOPICS, COORDINATOR):
        if not filesystem.exists(f"{path}/{name}"):
            filesystem.mkdir(f"{path}/{name}")
    filesystem.sync_dir(path)
    filesystem.sync_dir(path.rpartition("/")[0] or "/")
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    text = (
        "# The data folder of a keylane broker.\n"
        f"{_FORMAT_KEY}={FORMAT_VERSION}\ncluster.id={cluster_id}\nnode.id={node_id}\n"
    )
    filesystem.write_atomic(f"{path}/{META}", text.encode())
    return cluster_id
