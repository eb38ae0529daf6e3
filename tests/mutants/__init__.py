"""Mutants: small faults in `src`, each of which a named test has to notice (`make mutants`).

The idea: a test that cannot fail proves nothing. A mutant breaks one rule in one function, and its test runs while
that function is broken. A mutant that lives is a hole in the net. It is aimed by names, of the function and of what
the function mentions: code may move, and be written anew around them. `tests/unit/test_mutants.py` says at once which
aim no longer hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mutants.faults import Fault


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule, broken once."""

    rule: str
    """`guarantee 1` to `12`; `option: …`; `crash matrix: …` (a mode of delivery, or how a claim of
    docs/reliability.md begins); `DataFrames' crash matrix: …` (where the driver dies); `exactly once into Kafka: …`;
    `consumer groups: …`. What has no rule to break has no mutant."""
    breaks: str
    """What no longer holds, in words."""
    at: str
    """The qualified name of a function, class or constant, in whichever file it is: `Bucket.spend`. Where several files
    have one of that name, the end of its module goes before it: `exact.protocol:commit`."""
    fault: Fault
    test: str
    """That notices, below `tests`."""
