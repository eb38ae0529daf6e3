"""What the wheel says that it is made of and asks for (PEP 770): CycloneDX, beside the wheel's metadata."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_it_and_it_names_each_dependency(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (place,) = (name for name in archive.namelist() if ".dist-info/sboms/" in name)
        told = json.loads(archive.read(place))
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "keylane")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = names(project["dependencies"])
    extras = [one for extra, asked in project["optional-dependencies"].items() if extra != "all" for one in asked]
    by_scope = {"required": required, "optional": names(extras) - required - {"keylane"}}
    for scope, expected in by_scope.items():
        assert {one["name"] for one in told["components"] if one["scope"] == scope} == expected
    (dependencies,) = told["dependencies"]
    assert set(dependencies["dependsOn"]) == {one["bom-ref"] for one in told["components"]}


def names(requirements: list[str]) -> set[str]:
    return {found[0] for one in requirements if (found := re.match(r"[\w.-]+", one))}
