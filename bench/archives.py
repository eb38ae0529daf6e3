"""Tar archives of others, unpacked below a folder and nowhere else."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        # Debian's Python 3.11 has no filters yet.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)
