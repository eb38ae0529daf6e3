"""`python -m kit.replay SEED VARIETY STEPS`: run one simulation again, as a violation's text names it.

VARIETY is a number in `kit.simulation.VARIETY`. The exit code is 1 when a guarantee does not hold, and what
does not is printed.
"""

from __future__ import annotations

import sys

from kit.simulation import VARIETY, Simulation, Violation


def main(arguments: list[str]) -> int:
    seed, variety, steps = map(int, arguments)
    simulation = Simulation(seed, VARIETY[variety])
    try:
        simulation.run(steps)
        simulation.finish()
    except Violation as violation:
        sys.stdout.write(f"{violation}\n")
        return 1
    sys.stdout.write(f"seed {seed}: {simulation.steps} steps, every guarantee held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
