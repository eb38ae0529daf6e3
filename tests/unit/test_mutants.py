"""Each mutant hits what it is aimed at, its test exists, and each rule has one.

What has to be covered is read where it is stated: the options and modes of a pipeline, the claims of
docs/reliability.md, and the points at which the DataFrames' crash matrix lets a driver die.
"""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path
from typing import get_args

import pytest

from keylane.options import Guarantee
from mutants import Mutant
from mutants.aims import AimError, broken
from mutants.all import MUTANTS
from mutants.faults import instead

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
GUARANTEES = {*map(str, range(1, 13))}
"""Of the design: commits, snapshots, restarts, order, metadata, epochs, durability, bad input, what others write,
budgets, steps that are kept, and what knows its log."""
KINDS = (
    "guarantee",
    "crash matrix",
    "DataFrames' crash matrix",
    "option",
    "exactly once into Kafka",
    "consumer groups",
)


def covered(kind: str) -> set[str]:
    """What mutants of this kind stand for."""
    return {one.rule.removeprefix(f"{kind} ") for one in MUTANTS if one.rule.startswith(f"{kind} ")}


def options_of_the_contract() -> set[str]:
    """By the marks of its tests, and what it shows elsewhere."""
    contract = ast.parse((TESTS / "spark" / "test_contract.py").read_text())
    calls = (node for node in ast.walk(contract) if isinstance(node, ast.Call))
    marks = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "covers"]
    values = {
        ast.unparse(target): node.value
        for node in contract.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    parts, elsewhere = values["covers"], values["SHOWN_ELSEWHERE"]
    assert isinstance(parts, ast.Call)
    assert isinstance(elsewhere, ast.Dict)
    names = [*parts.args, *elsewhere.keys, *(name for mark in marks for name in mark.args)]
    return {ast.literal_eval(one) for one in names if one is not None}


def claims() -> list[str]:
    """The first column of the first table of docs/reliability.md."""
    _, _, rows = (ROOT / "docs" / "reliability.md").read_text().partition("\n|---")
    lines = rows.partition("\n\n")[0].splitlines()[1:]
    return [line.removeprefix("| ").partition(" | ")[0] for line in lines]


def deaths_of_a_driver() -> set[str]:
    """The points of the DataFrames' crash matrix."""
    module = ast.parse((TESTS / "spark" / "test_acknowledged.py").read_text())
    matrix = next(
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "test_the_crash_matrix"
    )
    calls = (node for one in matrix.decorator_list for node in ast.walk(one) if isinstance(node, ast.Call))
    return {ast.literal_eval(node.args[0]) for node in calls if ast.unparse(node.func) == "pytest.param"}


def test_each_aim_hits() -> None:
    """In a second: what it prints says how to aim anew."""
    problems = []
    for one in MUTANTS:
        try:
            broken(one)
        except AimError as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)


def test_each_mutant_names_a_test() -> None:
    tests = {one.test.partition("[")[0] for one in MUTANTS}
    missing = []
    for file, names in groupby(sorted(tests), key=lambda test: test.partition("::")[0]):
        tree = ast.parse((TESTS / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        missing += [name for name in names if "::" in name and name.rpartition("::")[2] not in defined]
    assert missing == []


def code_of(text: str, tmp_path: Path) -> str:
    """Of a module with this text, once the rate in it is broken."""
    module = tmp_path / "keylane" / "moved.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text(text)
    mutant = Mutant("option: rates", "a rate counts half", "Bucket.spend", instead("interval_s", "_ / 2"), "")
    return ast.unparse(broken(mutant, tmp_path).tree)


def test_a_mutant_follows_its_function(tmp_path: Path) -> None:
    text = (
        "class Bucket:\n    def spend(self, count):  # once more\n        self.used += (count *\n  self.interval_s)\n"
    )
    assert "self.used += count * (self.interval_s / 2)" in code_of(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class Rate: pass", "Bucket.spend, which is defined in no module: name the function that does this work now"),
        ("class Bucket:\n    def spend(self): pass", "Bucket.spend in keylane.moved has nothing that instead"),
    ],
)
def test_an_aim_that_misses_says_what_to_do(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(AimError, match=f"“a rate counts half”.*{problem}"):
        code_of(text, tmp_path)


def test_each_guarantee_has_a_mutant() -> None:
    assert covered("guarantee") == GUARANTEES


def test_each_option_of_the_contract_has_a_mutant() -> None:
    assert covered("option:") == options_of_the_contract()


def test_each_rule_of_the_crash_matrix_has_a_mutant() -> None:
    """A mode of delivery each, and a claim of docs/reliability.md each, whose beginning names it."""
    named, modes, stated = covered("crash matrix:"), set(get_args(Guarantee)), claims()
    assert len(stated) > 15
    assert modes <= named
    assert [one for one in stated if not one.startswith(tuple(named - modes))] == []
    assert [one for one in named - modes if not any(claim.startswith(one) for claim in stated)] == []


def test_each_point_of_the_dataframes_crash_matrix_has_a_mutant() -> None:
    assert covered("DataFrames' crash matrix:") == deaths_of_a_driver()


def test_every_rule_is_one_of_the_kinds() -> None:
    assert [one.rule for one in MUTANTS if not one.rule.startswith(KINDS)] == []
