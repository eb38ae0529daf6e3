"""A process that spends of a budget as fast as it may: `python -m kit.budget_member SERVERS FILE SEED`.

Each line of its file is what was spent and when, on the clock that all processes of a machine have in common. It spends
until it is killed, or its input ends. With `calls` for a seed it has as many calls at once as it may: each line is when
one began, and how long it took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from keylane.budgets.client import BudgetClient
from keylane.limits import ONE, AtOnce, Budget, Per

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = Budget("shared", Per(4_000, "units", per_ms=10_000, burst=200), lease_ms=500)
LARGEST = 150
SLOTTED = Budget("slotted", AtOnce(6, lease_ms=1_500))
CALL_S = 0.05


def start(servers: str, file: Path, seed: int | str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parents[1],)))}
    command = [sys.executable, "-m", "kit.budget_member", servers, str(file), str(seed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


def spent_in(file: Path) -> Iterator[tuple[int, int]]:
    """Time in nanoseconds, and amount, of each line that is whole."""
    text = file.read_text() if file.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            at, amount = line.split()
            yield int(at), int(amount)


def call(servers: str, file: str, ended: threading.Event) -> None:
    """Calls follow one another as slots allow."""
    with BudgetClient({"bootstrap.servers": servers}, SLOTTED) as client, Path(file).open("w", buffering=1) as out:
        calls: dict[int, float] = {}
        number = 0
        while not ended.is_set():
            now = time.monotonic()
            for one in [one for one, end_s in calls.items() if end_s <= now]:
                del calls[one]
                client.end(one, has_run=True)
            if client.spend(number, {}, now, is_attempt=True) is None:
                out.write(f"{int(now * 1e9)} {int(CALL_S * 1e9)}\n")
                calls[number] = now + CALL_S
                number += 1
            else:
                ended.wait(0.002)


def main(servers: str, file: str, seed: str) -> None:
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    if seed == "calls":
        call(servers, file, ended)
        return
    random = Random(int(seed))
    with BudgetClient({"bootstrap.servers": servers}, BUDGET) as client, Path(file).open("w", buffering=1) as out:
        number, amount = 0, 1
        while not ended.is_set():
            now = time.monotonic()
            due = client.spend(number, {"units": amount * ONE}, now)
            if due is not None:
                ended.wait(max(0.001, due - now))
                continue
            out.write(f"{int(now * 1e9)} {amount}\n")
            client.end(number, has_run=True)
            number, amount = number + 1, random.randint(1, LARGEST) if random.random() < 0.1 else random.randint(1, 10)


if __name__ == "__main__":
    main(*sys.argv[1:])
