"""`make mutants`: break one rule after the other, run the test of each, and say which ones live.

    make mutants                          # all of them
    make mutants ARGS="--only tracker"    # those whose words, aim, test or rule contain this
    make mutants ARGS="--list"
    make mutants ARGS="--random 500 --seed 1"    # small changes anywhere in the packages that keep the guarantees

The exit code is 1 when a mutant lives, is not aimed well, or when a test fails without any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mutants import random_faults
from mutants.aims import AimError, broken
from mutants.all import MUTANTS
from mutants.forks import ROOT, environment, pytest_arguments, run

if TYPE_CHECKING:
    from mutants import Mutant

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
    parser.add_argument("--only", default="", help="those whose words, aim, test or rule contain this")
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    parser.add_argument("--workers", type=int, default=2, help="tests at once (default: %(default)s)")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without any mutant first")
    parser.add_argument("--random", type=int, metavar="COUNT", help="so many small changes that are drawn, instead")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="a file of JSON lines for what is drawn; goes on where it ends")
    chosen = parser.parse_args(arguments)
    if chosen.random is not None:
        return random_faults.main(chosen.random, chosen.seed, chosen.workers, chosen.results)
    mutants = [one for one in MUTANTS if chosen.only in f"{one.breaks} {one.at} {one.test} {one.rule}"]
    if chosen.list:
        for one in mutants:
            print(f"[{one.rule}] {one.breaks}: {one.at}, {one.fault.name}; {one.test}")
        return 0
    if not mutants:
        print(f"no mutant contains {chosen.only!r}; --list shows all {len(MUTANTS)}")
        return 2
    begin = time.monotonic()
    if not chosen.no_baseline and not _tests_pass(mutants, chosen.workers):
        return 1
    verdicts = []
    with ThreadPoolExecutor(chosen.workers) as pool:
        for verdict in pool.map(_try, mutants):
            verdicts.append(verdict)
            print(f"{verdict.seconds:5.1f} s  {verdict.text:7}  {_name(verdict.mutant)}", flush=True)
    alive = [verdict for verdict in verdicts if not verdict.is_dead]
    for verdict in alive:
        print(f"ALIVE ({verdict.text}): {_name(verdict.mutant)}; test: {verdict.mutant.test}")
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} mutants noticed in {time.monotonic() - begin:.0f} s")
    return 1 if alive else 0


def _tests_pass(mutants: list[Mutant], workers: int) -> bool:
    """Whether the tests pass without any mutant."""
    tests = sorted({one.test for one in mutants})
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *pytest_arguments(*tests, "-n", str(workers))],
        cwd=ROOT,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        timeout=BASELINE_S,
        check=False,
    )
    if ended.returncode != 0:
        print(f"tests fail without any mutant:\n{ended.stdout[-3_000:]}")
    else:
        print(f"without a mutant: {ended.stdout.strip().splitlines()[-1]}", flush=True)
    return ended.returncode == 0


def _try(mutant: Mutant) -> Verdict:
    begin = time.monotonic()
    try:
        module = broken(mutant)
    except AimError as error:
        return Verdict(mutant, is_dead=False, text=str(error), seconds=0.0)
    with tempfile.TemporaryDirectory(prefix="keylane-mutant-") as folder:
        ended = run(module, Path(folder), [mutant.test], TIMEOUT_S)
    # The test's failure counts, not how pytest ended: a thread that the fault killed fails pytest itself afterwards.
    is_dead = bool(ended.noticed_by) and ended.code is not None
    how = {0: "lives", None: f"hangs {TIMEOUT_S} s"}.get(ended.code, f"pytest ends with {ended.code}")
    return Verdict(mutant, is_dead, "dead" if is_dead else how, seconds=time.monotonic() - begin)


def _name(mutant: Mutant) -> str:
    return f"{mutant.rule}: {mutant.breaks} ({mutant.at})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
