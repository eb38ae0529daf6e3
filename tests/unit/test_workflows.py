"""What a public host runs names targets, Pythons and Sparks that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from kit.spark_versions import PINS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_an_end_and_runs_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= set(re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= 60, name
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert {word for one in commands for word in re.findall(r"^make ([\w-]+)", one)} <= targets, name
        assert all((ROOT / one).exists() for one in commands if one.startswith(".ci/")), name


def test_each_python_that_is_claimed_is_tried() -> None:
    claimed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [one.rpartition(" ")[2] for one in claimed if re.search(r"Python :: \d\.\d", one)]
    assert jobs(ROOT / ".github/workflows/ci.yml")["tests"]["strategy"]["matrix"]["python"] == pythons


def test_each_spark_that_is_claimed_is_tried() -> None:
    assert jobs(ROOT / ".github/workflows/ci.yml")["sparks"]["strategy"]["matrix"]["spark"] == [*PINS]


def test_what_is_published_was_tried_before_and_needs_no_secret() -> None:
    path = ROOT / ".github/workflows/release.yml"
    publish = jobs(path)["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in path.read_text()


def test_a_release_names_the_repository_that_it_is_built_from(monkeypatch: pytest.MonkeyPatch) -> None:
    build = jobs(ROOT / ".github/workflows/release.yml")["build"]["steps"]
    assert [step["env"] for step in build if "hatchling" in step.get("run", "")] == [
        {"KEYLANE_REPOSITORY": "${{ github.server_url }}/${{ github.repository }}"}
    ]
    monkeypatch.setenv("KEYLANE_REPOSITORY", "https://example.org/keylane")
    urls = ProjectMetadata(str(ROOT), PluginManager()).core.urls
    assert urls["Issues"] == "https://example.org/keylane/issues"
    files = [url.partition("/blob/main/")[2] for url in urls.values()]
    assert all((ROOT / name).exists() for name in files if name)
    monkeypatch.delenv("KEYLANE_REPOSITORY")
    assert ProjectMetadata(str(ROOT), PluginManager()).core.urls == {}, "a build elsewhere does not know one"
