"""What a partition's folder must hold, in a file of its own: from where on the log is, and which segment is its last.

A removed segment leaves no trace in the others, so these are written down when they change: a new segment is noted
when it is there and before anything in it is acknowledged, and a new start before what lies below it is removed. So
after a crash there may be more files than this says, and never fewer. A leader epoch is noted before the first batch of
it is written.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from keylane.errors import DataFolderError
from keylane.storage.epochs import EpochHistory
from keylane.storage.sealed import read_sealed, seal

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileSystem

FACTS_FILE = "log.json"
KIND = "log"


def _facts_json(start: int, last: int, epochs: EpochHistory) -> bytes:
    facts = {"start": start, "last": last, "epochs": epochs.entries}
    return json.dumps(facts, separators=(",", ":")).encode()


def encode_facts(start: int, last: int, epochs: EpochHistory) -> bytes:
    """The file of a log of which this is true."""
    return seal(KIND, _facts_json(start, last, epochs))


class LogFacts:
    """The facts of one log. Thread safety: any thread; what changes them blocks."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        *,
        start: int = 0,
        last: int = 0,
        epochs: EpochHistory = EpochHistory(),  # noqa: B008 - it never changes
    ) -> None:
        self.start = start
        """Records below this offset are deleted, and the segment that holds it is there."""
        self.last = last
        """The base offset of a segment that is there, with all before it back to the start."""
        self.epochs = epochs
        """In which leader epochs its batches were written."""
        self._filesystem = filesystem
        self._path = f"{folder}/{FACTS_FILE}"
        self._lock = threading.Lock()

    @classmethod
    def read(cls, filesystem: FileSystem, folder: str) -> LogFacts:
        """Raises `DataFolderError` for a file that is damaged or missing."""
        path = f"{folder}/{FACTS_FILE}"
        try:
            value = read_sealed(filesystem, path, KIND)
        except FileNotFoundError as error:
            text = f"{path} is missing: restore it from a copy, or run `keylane broker repair`"
            raise DataFolderError(text) from error
        epochs = EpochHistory.read(value.get("epochs", ()) or EpochHistory().entries)  # format 2 had none
        return cls(filesystem, folder, start=value["start"], last=value["last"], epochs=epochs)

    def make(self) -> None:
        """Make the file, in a folder that nobody knows yet. The caller syncs it."""
        file = self._filesystem.open_append(self._path)
        file.write(seal(KIND, self._json()))
        file.close()

    def write(self) -> None:
        """Replace the file, durably."""
        self._filesystem.write_atomic(self._path, seal(KIND, self._json()))

    def _json(self) -> bytes:
        return _facts_json(self.start, self.last, self.epochs)

    def note(self, *, start: int = 0, last: int = 0, epochs: EpochHistory | None = None) -> None:
        """The log starts here, or its last segment does, or it has these epochs: durable on return. Raises `OSError`:
        then it is as before."""
        with self._lock:
            before = self.start, self.last, self.epochs
            self.start, self.last = max(self.start, start), max(self.last, last)
            self.epochs = epochs or self.epochs
            if (self.start, self.last, self.epochs) == before:
                return
            try:
                self.write()
            except BaseException:
                self.start, self.last, self.epochs = before
                raise
