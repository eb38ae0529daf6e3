"""Each mutant is aimed at what is there: its text stands once, its test exists, and what it stands for is covered."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.all import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{one.file}: {one.breaks}" for one in MUTANTS])
def test_a_mutant_stands_where_it_is_aimed(mutant: object) -> None:
    one = next(other for other in MUTANTS if other is mutant)
    assert (ROOT / "src" / "keylane" / one.file).read_text().count(one.old) == 1
    assert one.new != one.old
    file, _, name = one.test.partition("::")
    names = {node.name for node in ast.walk(ast.parse((ROOT / "tests" / file).read_text())) if hasattr(node, "name")}
    assert not name or name.partition("[")[0].rpartition("::")[2] in names


def test_no_two_mutants_are_the_same() -> None:
    assert len({(one.file, one.old, one.new) for one in MUTANTS}) == len(MUTANTS)
