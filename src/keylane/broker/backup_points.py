"""A backup's point: one moment of a data folder, kept in it under second names while `keylane broker backup` copies it.

    backup/request          an id: somebody asks the running broker for a point
    backup/<id>/0, 1, …     second names (hard links) of the folder's files
    backup/<id>/point.json  which file of the folder each is, and how many of its bytes count; written last
    backup/<id>/refused     in its place: why there is no point

The moment is one turn of the broker's loop: for each log, and for the journal, what it knows to be durable then. All
that was acknowledged is among it, and a marker of a transaction only with the decision that it follows. So a point is
what a loss of power would leave at that moment, and a start makes of it what it makes of that.

Files are asked with, and no socket: a sidecar that has the folder's volume can ask, nobody who has not, and whoever
is killed on the way leaves what the next one understands.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker import data_folder
from keylane.errors import DataFolderError
from keylane.storage.filesystem import DurableFiles
from keylane.storage.sealed import read_sealed, write_sealed
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    from keylane.broker.topics import TopicRegistry
    from keylane.coordinator.coordinator import Coordinator
    from keylane.coordinator.journal.journal import FileJournal
    from keylane.storage.filesystem import FileSystem

logger = logger_of("keylane.broker")

FOLDER = "backup"
REQUEST = "request"
POINT = "point.json"
KIND = "backup-point"
REFUSED = "refused"
REFUSED_KIND = "backup-refused"
POLL_S = 0.5
"""Between two looks for a request: 3 µs each."""


class Point(NamedTuple):
    """One moment of a data folder."""

    linked: list[tuple[str, int]]
    """By the number that names the link: path in the folder, and bytes that count."""
    written: dict[str, str]
    """Texts of files that are not linked, by path in the folder."""

    def write(self, filesystem: FileSystem, place: str) -> None:
        """Durable on return, and with it the names of the links."""
        write_sealed(filesystem, f"{place}/{POINT}", KIND, {"linked": self.linked, "written": self.written})


def read_point(filesystem: FileSystem, place: str) -> Point:
    """Raises `DataFolderError` for damage."""
    value = read_sealed(filesystem, f"{place}/{POINT}", KIND)
    return Point([(path, size) for path, size in value["linked"]], value["written"])


def make_point(filesystem: FileSystem, path: str, point_id: str, durable: Iterable[DurableFiles]) -> None:
    """Keep this moment of the folder; nothing of it goes away before the return. Blocks; raises `OSError`."""
    place = begin_point(filesystem, path, point_id)
    linked: list[tuple[str, int]] = []
    written: dict[str, str] = {}
    start = len(path) + 1
    for files in durable:
        linked += ((name[start:], size) for name, size in files.grown)
        written |= {name[start:]: content.decode() for name, content in files.written.items()}
    for number, (name, _) in enumerate(linked):
        filesystem.link(f"{path}/{name}", f"{place}/{number}")
    Point(linked, written).write(filesystem, place)


def begin_point(filesystem: FileSystem, path: str, point_id: str) -> str:
    """The point's folder, empty; a request was heard once it is there."""
    place = f"{path}/{FOLDER}/{point_id}"
    if filesystem.exists(place):
        filesystem.remove_tree(place)
    filesystem.mkdir(place)
    return place


def state_files(filesystem: FileSystem, path: str, *others: str) -> DurableFiles:
    """The files of the folder itself that there are: each is replaced as a whole, so a link keeps it."""
    files = [f"{path}/{name}" for name in (*data_folder.STATE_FILES, *others)]
    return DurableFiles([(file, filesystem.size_of(file)) for file in files if filesystem.exists(file)], {})


class BackupPoints:
    """Makes the points that are asked for, while the broker runs.

    Thread safety: belongs to the event loop's thread; files are linked in the executor.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        executor: Executor,
        topics: TopicRegistry,
        coordinator: Coordinator,
        journal: FileJournal,
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._topics = topics
        self._coordinator = coordinator
        self._journal = journal

    async def watch(self) -> None:
        """Answer requests until this is cancelled."""
        self._warn_of_kept()
        request = f"{self._path}/{FOLDER}/{REQUEST}"
        while True:
            if self._filesystem.exists(request):
                await self._answer(request)
            await asyncio.sleep(POLL_S)

    def _warn_of_kept(self) -> None:
        folder = f"{self._path}/{FOLDER}"
        for name in self._filesystem.listdir(folder) if self._filesystem.exists(folder) else ():
            if self._filesystem.is_dir(f"{folder}/{name}"):
                logger.warning(
                    "%s/%s keeps files of a backup that was not finished, and their room: run `keylane broker backup` "
                    "again, or remove the folder",
                    folder,
                    name,
                )

    async def _answer(self, request: str) -> None:
        point_id = ""
        try:
            point_id = read_request(self._filesystem, request)
            if not self._filesystem.exists(f"{self._path}/{FOLDER}/{point_id}/{POINT}"):  # of a life that was killed
                await self.make(point_id)
        except (OSError, DataFolderError) as error:
            logger.error("%s: no point for a backup: %s", request, error)  # noqa: TRY400 - one line says it all
            if point_id:
                self._refuse(point_id, str(error))
        if self._filesystem.exists(request):
            self._filesystem.remove(request)

    def _refuse(self, point_id: str, reason: str) -> None:
        try:
            place = begin_point(self._filesystem, self._path, point_id)
            write_sealed(self._filesystem, f"{place}/{REFUSED}", REFUSED_KIND, reason)
        except OSError as error:
            logger.error("%s: it cannot be said there: %s", self._path, error)  # noqa: TRY400

    async def make(self, point_id: str) -> None:
        """Keep what is durable now. Raises `OSError`, and `DataFolderError` where committed offsets are damaged."""
        await self._coordinator.loaded()
        async with self._topics.holding_files(), self._journal.holding_files():
            # One turn of the loop: nothing that depends on what is listed can become durable between two of these.
            durable = [self._journal.durable_files(), *(log.durable_files() for log in self._topics.logs())]
            work = functools.partial(self._make, point_id, durable)
            await asyncio.get_running_loop().run_in_executor(self._executor, work)
        logger.info("%s/%s/%s keeps this moment for a backup", self._path, FOLDER, point_id)

    def _make(self, point_id: str, durable: list[DurableFiles]) -> None:
        make_point(self._filesystem, self._path, point_id, [state_files(self._filesystem, self._path), *durable])


def read_request(filesystem: FileSystem, request: str) -> str:
    """The id that is asked for. Raises `DataFolderError` for anything else, which may be anybody's."""
    data = filesystem.read(request)
    if len(data) != 32 or not data.isalnum() or not data.isascii():
        raise DataFolderError(f"{request} holds no id of a point")
    return data.decode()
