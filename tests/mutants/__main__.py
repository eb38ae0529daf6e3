"""`make mutants`: put each mutant into a copy of the tree, run its test there, and say which ones live.

    make mutants                          # all of them
    make mutants ARGS="--only tracker"    # those whose words, file or test contain this
    make mutants ARGS="--list"

The exit code is 1 when a mutant lives, is not aimed well, or when a test fails without any.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from mutants.all import MUTANTS
from mutants.forks import environment, exit_code, pytest_arguments

if TYPE_CHECKING:
    from mutants import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "bench", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
TIMEOUT_S = 180
"""A test that takes longer has not noticed anything."""
BASELINE_S = 1_800
"""For all tests that are named, without any mutant."""


class Verdict(NamedTuple):
    mutant: Mutant
    is_dead: bool
    text: str
    seconds: float


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Faults in src that a named test has to notice.")
    parser.add_argument("--only", default="", help="those whose words, file, test or rule contain this")
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    parser.add_argument("--workers", type=int, default=2, help="copies of the tree at once (default: %(default)s)")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without any mutant first")
    chosen = parser.parse_args(arguments)
    mutants = [one for one in MUTANTS if chosen.only in f"{one.breaks} {one.file} {one.test} {one.rule}"]
    if chosen.list:
        for one in mutants:
            print(f"{one.file}: {one.breaks}  [{one.rule or '-'}]  {one.test}")
        return 0
    if not mutants:
        print(f"no mutant contains {chosen.only!r}; --list shows all {len(MUTANTS)}")
        return 2
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="keylane-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(chosen.workers):
            trees.put(_copy(Path(folder, str(number))))
        if not chosen.no_baseline:
            tree = trees.get()
            tests = sorted({one.test for one in mutants})
            ended = _pytest(tree, *tests, "-n", str(chosen.workers), timeout_s=BASELINE_S)
            trees.put(tree)
            if ended.returncode != 0:
                print(f"tests fail without any mutant:\n{ended.stdout[-3_000:]}")
                return 1
            print(f"without a mutant: {ended.stdout.strip().splitlines()[-1]}", flush=True)
        with ThreadPoolExecutor(chosen.workers) as pool:
            verdicts = []
            for verdict in pool.map(lambda one: _try(one, trees), mutants):
                verdicts.append(verdict)
                one = verdict.mutant
                print(f"{verdict.seconds:5.1f} s  {verdict.text:7}  {one.file}: {one.breaks}", flush=True)
    alive = [verdict for verdict in verdicts if not verdict.is_dead]
    for verdict in alive:
        print(f"ALIVE ({verdict.text}): {verdict.mutant.file}: {verdict.mutant.breaks}; test: {verdict.mutant.test}")
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} mutants noticed in {time.monotonic() - begin:.0f} s")
    return 1 if alive else 0


def _copy(tree: Path) -> Path:
    """With bytecode that is believed by the hash of its source, and not by its time: two texts of one size that are
    written within a second have one time. Python writes it anew in the same way. pytest writes that of test modules, by
    their time, and those do not change."""
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
        else:
            shutil.copy2(source, tree / name)
    for name in ("src", "tests", "bench"):
        compileall.compile_dir(
            tree / name, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH, workers=1
        )
    return tree


def _try(mutant: Mutant, trees: SimpleQueue[Path]) -> Verdict:
    tree = trees.get()
    file = tree / "src" / "keylane" / mutant.file
    whole = file.read_text()
    begin = time.monotonic()
    try:
        if whole.count(mutant.old) != 1:
            return Verdict(mutant, is_dead=False, text=f"stands {whole.count(mutant.old)} times", seconds=0.0)
        file.write_text(whole.replace(mutant.old, mutant.new))
        code = exit_code(tree, mutant.test, TIMEOUT_S)
        text = {0: "lives", 1: "dead", None: f"hangs {TIMEOUT_S} s"}.get(code, f"pytest ends with {code}")
        return Verdict(mutant, is_dead=code == 1, text=text, seconds=time.monotonic() - begin)
    finally:
        file.write_text(whole)
        trees.put(tree)


def _pytest(tree: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *pytest_arguments(*arguments)]
    return subprocess.run(
        command,
        cwd=tree,
        env=os.environ | environment(tree),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
