"""The virtual environment and its archive that YARN sends to its nodes, as docs/clusters.md tells users to make them.
Without pip and without a network: the packages are those of this environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

import keylane

if TYPE_CHECKING:
    from collections.abc import Iterable

OF_SPARK = ("cloudpickle", "pyarrow")
"""What `keylane[spark]` brings beside PySpark and a Java: those come with `spark-submit`, and from the nodes."""
NEEDLESS = {"tests", "include", "__pycache__"}


def make(folder: Path) -> Path:
    """Writes `environment` and `environment.tar.gz` into the folder, for machines that have this interpreter where it
    is here; returns the archive."""
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    packages = next(made.glob("lib/python*/site-packages"))
    for name in sorted(_needed(["keylane", *OF_SPARK])):
        found = distribution(name)
        for file in found.files or ():
            if ".." not in file.parts and not NEEDLESS & set(file.parts):
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(found.locate_file(file)), packages / file)
    for package in ("keylane", "pyspark_keylane"):  # an editable installation has them elsewhere
        source = Path(keylane.__file__).parents[1] / package
        shutil.copytree(source, packages / package, ignore=shutil.ignore_patterns(*NEEDLESS), dirs_exist_ok=True)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(made, arcname=".")
    return archive


def _needed(names: Iterable[str]) -> set[str]:
    """These distributions and what they require without extras."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop().lower()
        if name not in found:
            found.add(name)
            asked = map(Requirement, distribution(name).requires or ())
            todo += [one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found
