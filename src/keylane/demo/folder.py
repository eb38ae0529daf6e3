"""The folder of a run: temporary and gone at the end, or kept, with a state file that lets a later run go on.

A kept folder holds `keylane-demo.json` (what the run is), `broker/` (the embedded broker's data, so the topics and the
group's offsets), and the results. A folder with other things in it is refused: nothing of anybody's is mixed or
replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.demo.options import DEFAULT_RECORDS
from keylane.errors import DataFolderError, PeerError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from keylane.demo.options import DemoOptions
    from keylane.options import Ordering

STATE_FILE = "keylane-demo.json"
STATE_FORMAT = 1

LEAST_FREE_BYTES = 1024 * 1024
"""A disk with less is full: the journal's reserve alone takes as much."""

DEFAULT_RESULTS = Path("keylane-demo")
"""Where the results of a run without `--keep` go, in the current folder."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What identifies a run across its restarts."""

    run_id: str
    """Eight hexadecimal digits; names the group on a broker that is not ours."""
    ordering: Ordering
    records: int
    bootstrap: str | None
    made_topics: bool = False
    """The topics were made by this run, so what is in them is its own."""
    format: int = STATE_FORMAT

    @property
    def group(self) -> str:
        """`weather`, but never a name that somebody else's group could have on a shared broker."""
        return "weather" if self.bootstrap is None else f"keylane-demo-{self.run_id}"


class RunFolder:
    """Raises `DataFolderError` for a folder that is not a run's, `UsageError` for options that contradict its state."""

    def __init__(self, options: DemoOptions) -> None:
        self.kept = options.keep is not None
        fresh = RunState(
            uuid.uuid4().hex[:8],
            options.ordering,
            options.records or DEFAULT_RECORDS[options.ordering],
            options.bootstrap,
        )
        if options.keep is None:
            self.resumed = False
            self.state = fresh
            self.path = Path(tempfile.mkdtemp(prefix="keylane-demo-"))
        else:
            self.path = options.keep
            state = _read_state(self.path)
            self.resumed = state is not None
            self.state = fresh if state is None else _agreed(options, state, self.path)
        self.results = options.results or (self.path if self.kept else DEFAULT_RESULTS)
        try:
            for folder in (self.path, self.results):
                folder.mkdir(parents=True, exist_ok=True)
            self.save(self.state)
        except OSError as error:
            self.remove_if_temporary()
            raise DataFolderError(
                f"{error.filename or self.path}: {error.strerror}: give a folder to write to"
            ) from error

    @property
    def broker_data(self) -> Path:
        return self.path / "broker"

    def save(self, state: RunState) -> None:
        """Replace the state file in one step."""
        self.state = state
        if self.kept:
            part = self.path / f"{STATE_FILE}.part"
            part.write_text(json.dumps(asdict(state)) + "\n")
            part.replace(self.path / STATE_FILE)

    def explained(self, error: PeerError) -> PeerError:
        """The error of a run; where its disk is full, with the reason: clients of the broker learn of a timeout."""
        free = shutil.disk_usage(self.path).free
        if free >= LEAST_FREE_BYTES:
            return error
        return PeerError(f"{error}; the disk of {self.path} is full ({free:,} bytes are free): make room there")

    def remove_if_temporary(self) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.remove_if_temporary()


def _read_state(path: Path) -> RunState | None:
    """The state of a kept run; None for a folder that is new or empty."""
    try:
        names = os.listdir(path)  # noqa: PTH208 - its errors tell a missing folder from a file
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataFolderError(f"--keep {path}: {error.strerror}: give a folder") from error
    if not names:
        return None
    if STATE_FILE not in names:
        raise DataFolderError(f"--keep {path}: not a folder of this demo (no {STATE_FILE}): give a new or an empty one")
    try:
        state = RunState(**json.loads((path / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DataFolderError(f"{path / STATE_FILE}: not readable ({error}): give a new folder") from error
    if state.format != STATE_FORMAT:
        raise DataFolderError(
            f"{path / STATE_FILE}: of format {state.format}, this is {STATE_FORMAT}: give a new folder"
        )
    return state


def _agreed(options: DemoOptions, state: RunState, path: Path) -> RunState:
    """The state that a resumed run goes on with: only the number of records may grow."""
    for name, asked, held in (
        ("ordering", options.ordering, state.ordering),
        ("bootstrap", options.bootstrap or "(embedded)", state.bootstrap or "(embedded)"),
    ):
        if asked != held:
            raise UsageError(f"--{name} {asked}: {path} holds a run with {held}: give that, or another folder")
    if options.records is not None and options.records < state.records:
        raise UsageError(f"--records {options.records}: {path} holds a run of {state.records}: give that or more")
    return replace(state, records=options.records or state.records)
