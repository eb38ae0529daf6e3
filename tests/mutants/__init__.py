"""Mutants: small faults in `src`, each of which a named test has to notice (`make mutants`).

The idea: a test that cannot fail proves nothing. A mutant is one replaced text in one file; it is put into a copy of
the tree, and its test runs there. A mutant that lives is a hole in the net. Where code moves a mutant is aimed anew,
never dropped: its text has to stand in its file exactly once (`tests/unit/test_mutants.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. `breaks` says what no longer holds, in words; `file` is below `src/keylane`, `test` below `tests`."""

    breaks: str
    file: str
    old: str
    new: str
    test: str
    rule: str = ""
    """What it stands for: `guarantee 1` to `8`; `crash matrix: …` (a mode of delivery, or how a claim of
    docs/reliability.md begins); `DataFrames' crash matrix: …` (where the driver dies); `option: …`; empty for anything
    else. Each of these has one at least."""
