"""The walks' tracer: what only ticks is left out, and what a record passes is there, with who called it, in order."""

from __future__ import annotations

import importlib
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pages import marks
from walk import __main__ as command
from walk import walks
from walk.tracer import Tracer, each_time, entered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
FILES = {
    "loop": """
from pieces import statistics, storing

def run(inbox, turned):
    while (item := inbox.get()) is not None:
        turn(item)
        turned.set()

def turn(item):
    statistics.tick(item)
    if item != "tick":
        storing.store(item)
""",
    "statistics": """
from pieces import shared

def tick(item):
    return shared.length(item)
""",
    "storing": """
from pieces import shared

def store(item):
    shared.length(item)
    return [each for each in item]
""",
    "shared": """
def length(item):
    return len(item)
""",
    "asynchronous": """
import asyncio

async def main(inbox, turned):
    while (item := await asyncio.to_thread(inbox.get)) is not None:
        if item != "tick":
            asyncio.get_running_loop().call_soon(lambda: store(item))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turned.set()

def store(item):
    from pieces import storing
    storing.store(item)
""",
    "started": """
import asyncio

def run(inbox, turned):
    from pieces import asynchronous
    asyncio.run(asynchronous.main(inbox, turned))
""",
}


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with a loop that ticks, and its folder."""
    folder = tmp_path / "pieces"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "pieces"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


@pytest.fixture
def passed(pieces: Path) -> Iterator[Callable[[str, str], list[str]]]:
    """The files that an item passes in a thread which was traced idle before, by the module whose `run` it runs."""
    tracer = Tracer(pieces)
    inbox: queue.Queue[str | None] = queue.Queue()
    turned = threading.Event()
    threads = []

    def turns(*items: str) -> dict[Any, None]:
        tracer.start()
        for item in items:
            turned.clear()
            inbox.put(item)
            assert turned.wait(30)
        return tracer.stop()

    def files(module: str, item: str) -> list[str]:
        tracer.install()
        thread = threading.Thread(target=importlib.import_module(f"pieces.{module}").run, args=(inbox, turned))
        threads.append(thread)
        thread.start()
        idle = turns("tick", "tick", "tick")  # all of what is between two of them, too
        return [Path(file).stem for file in entered(idle, turns(item))]

    yield files
    inbox.put(None)
    for thread in threads:
        thread.join()
    tracer.remove()


def test_what_only_ticks_is_left_out_and_what_stores_is_there_with_its_callers(
    passed: Callable[[str, str], list[str]],
) -> None:
    assert passed("loop", "record") == ["loop", "storing", "shared"]


def test_a_tick_passes_nothing(passed: Callable[[str, str], list[str]]) -> None:
    assert passed("loop", "tick") == []


def test_who_runs_asyncios_loop_is_no_caller_of_its_callbacks(passed: Callable[[str, str], list[str]]) -> None:
    assert passed("started", "record") == ["asynchronous", "storing", "shared"]


def test_a_file_counts_when_it_is_there_each_time() -> None:
    assert each_time([["a", "timer", "b"], ["b", "a"], ["a", "b", "heartbeat"]]) == ["a", "b"]


@pytest.fixture
def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the walk of a record found: files one more than allowed, and the fourth too long."""
    monkeypatch.setattr(walks, "ROOT", tmp_path / "keylane")
    (tmp_path / "keylane").mkdir()
    files = []
    for number in range(command.MAX_FILES + 1):
        path = tmp_path / "keylane" / f"{number}.py"
        path.write_text(f'"""Number\n{number}.\n\nMore."""\n' + "x = 1\n" * (command.MAX_LINES - 4 + (number == 3)))
        files.append(str(path))
    monkeypatch.setitem(command.WALKS, "record", lambda: [files])
    return files


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["walk", *arguments])
    return command.main()


def test_above_the_limits_it_fails_and_names_them(
    walked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "record") == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "one record: keylane/3.py has 601 lines, allowed are 600",
        "one record: 16 files, allowed are 15",
    ]
    assert printed.out.splitlines()[0] == "one record: 16 files, 9601 lines"
    assert printed.out.splitlines()[4].split() == ["4", "keylane/3.py", "601"]
    del walked[3]
    assert run(monkeypatch, "record") == 0
    assert capsys.readouterr().err == ""
    assert run(monkeypatch, "recrod") == 2


def test_the_tour_says_what_each_file_is_for(
    walked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["before", *marks("walk of a record"), "after"]))
    del walked[2:]
    assert run(monkeypatch, "record", "--markdown", "--page", str(page)) == 0
    tour = "One record passes 2 files.\n\n1. `keylane/0.py`: Number 0.\n2. `keylane/1.py`: Number 1.\n"
    assert tour in capsys.readouterr().out
    assert tour in page.read_text()


@pytest.mark.soak
@pytest.mark.parametrize("name", command.WALKS)
def test_real_walks(name: str) -> None:
    """Above the limits it exits with 1 and says so; it never finds nothing."""
    ran = subprocess.run(
        [sys.executable, "-m", "walk", name],
        cwd=ROOT / "bench",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    head, *files = ran.stdout.strip().splitlines()
    assert head.startswith(f"one {name}: {len(files)} files")
    assert len(files) > 3, ran.stdout
    assert ran.returncode == ("allowed are" in ran.stderr), ran.stderr
