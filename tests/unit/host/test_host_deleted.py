"""The folder `keylane/flow/host` can be deleted without a change elsewhere."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import keylane

PROGRAM = """
import importlib.util
import keylane
from keylane import Pipeline, Processes
from kit.fakes import FakeBroker, FakeEngine

assert importlib.util.find_spec("keylane.flow.host") is None, keylane.__file__
T0 = ("t", 0)


def plain(record):
    pass


async def coroutine(record):
    pass


if __name__ == "__main__":
    for options in ({"one_processor": True}, {"handler": coroutine}, {"workers": Processes(1)}):
        broker = FakeBroker([T0])
        broker.append(T0, [(b"k", b"v")] * 10)
        options.setdefault("handler", plain)
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        pipeline = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", **options)
        with FakeEngine(pipeline, broker, ending_offsets={T0: 10}) as engine:
            assert engine.loop.ended.wait(60)
        print(broker.committed[T0][0])
"""


def test_the_folder_stands_on_nothing_else_of_keylane() -> None:
    files = sorted(Path(keylane.__file__).parent.joinpath("flow", "host").glob("*.py"))
    assert len(files) > 3
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            others = [
                one for one in names if one.split(".")[0] == "keylane" and not one.startswith("keylane.flow.host")
            ]
            assert not others, f"{file.name} imports {others}"


def test_without_the_folder_every_kind_of_worker_runs(tmp_path: Path) -> None:
    package = Path(keylane.__file__).parent
    leave_out = shutil.ignore_patterns("host", "__pycache__")
    shutil.copytree(package, tmp_path / "keylane", ignore=leave_out)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    ended = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["10"] * 3), ended.stderr
    assert "one_processor=True has no effect: this keylane comes without keylane.flow.host" in ended.stderr
