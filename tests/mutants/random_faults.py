"""Random mutants: what does not follow a list shows how much of the code the tests hold (`--random 500 --seed 1`).

A small change is drawn somewhere in the packages that keep the guarantees, and the unit and property tests that reach
its function run, the quickest first. A seed draws the same faults in each run: whether one is drawn depends on its
function and on itself, and on no other code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mutants.aims import SRC, Broken
from mutants.faults import Place, mentions
from mutants.forks import ROOT, Ending, environment, run

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("flow", "consumer", "offsets", "coordinator")
TESTS = [
    f"tests/{kind}/{package}"
    for kind in ("unit", "property")
    for package in ("engine", "offsets", "coordinator", "kafka", "delivery")
    if (ROOT / "tests" / kind / package).exists()
]
QUICK_S, SLOW_S = 1.0, 1.0
"""So long the quickest tests may take for one mutant together; and so long those that take half a second each."""
TIMEOUT_S = 120
"""Of the clock, for those that wait for what never comes; those that turn for ever have twice their processor time."""
OTHERS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
OF_LOGS = {"logger", "_log", "log", "_logger"}


class Change(NamedTuple):
    """One that can be drawn."""

    kind: str
    place: Place
    nodes: list[ast.AST]
    """That come instead."""


class Site(NamedTuple):
    """Where one is, so that it is found again in the same code."""

    module: str
    function: str
    number: int
    """Among the changes of this function."""
    text: str
    """What is changed, and how."""


class Verdict(NamedTuple):
    site: Site
    ending: Ending
    tests: int
    """That reach the function, and were to run."""

    @property
    def is_alive(self) -> bool:
        return self.ending.code == 0


class Reach(NamedTuple):
    """What a test reaches."""

    seconds: float
    functions: set[str]


def main(count: int, seed: int, workers: int, results: Path | None) -> int:
    """Says what each draw comes to, and prints those that live. Its exit code is 0: many live that harm nobody."""
    drawn = draw(count, seed)
    known = _known(results)
    began = time.monotonic()
    reaches = record()
    print(f"{len(reaches)} tests ran without a fault in {time.monotonic() - began:.0f} s", flush=True)
    with ThreadPoolExecutor(workers) as pool:
        for verdict in pool.map(lambda site: try_site(site, reaches), [one for one in drawn if one not in known]):
            known[verdict.site] = verdict
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(verdict) + "\n")
            print(f"{_word(verdict)}  {_name(verdict.site)}  {verdict.ending.noticed_by}", flush=True)
    alive = [known[one] for one in drawn if known[one].is_alive]
    for verdict in alive:
        print(f"LIVES (of {verdict.tests} tests): {_name(verdict.site)}")
    print(f"{len(alive)} of {len(drawn)} random faults live, after {time.monotonic() - began:.0f} s")
    return 0


def draw(count: int, seed: int) -> list[Site]:
    """So many of all."""

    def rank(site: Site) -> str:
        return hashlib.sha256(f"{seed} {site.function} {site.text} {site.number}".encode()).hexdigest()

    return sorted(all_sites(), key=rank)[:count]


def all_sites() -> Iterator[Site]:
    for package in PACKAGES:
        for file in sorted((SRC / "keylane" / package).rglob("*.py")):
            module = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
            for name, function in _functions(ast.parse(file.read_text()).body):
                for number, change in enumerate(_changes(function)):
                    was = ast.unparse(change.place.node).replace("\n", " ")
                    yield Site(module, name, number, f"{change.kind}: {was[:160]}")


def planted(site: Site) -> Broken:
    file = SRC.joinpath(*site.module.split("."))
    tree = ast.parse((file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text())
    change = list(_changes(dict(_functions(tree.body))[site.function]))[site.number]
    change.place.put(*change.nodes)
    return Broken(site.module, ast.fix_missing_locations(tree))


def record() -> dict[str, Reach]:
    """Runs all tests once; which functions of these packages each of them enters."""
    with tempfile.TemporaryDirectory(prefix="keylane-reach-") as folder:
        file = Path(folder, "reach.json")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants.reach", *TESTS],
            cwd=ROOT,
            env=os.environ | environment() | {"KEYLANE_REACH": str(file), "PYTHONPATH": f"{SRC}:{ROOT / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"tests fail without any mutant:\n{ended.stdout[-3_000:]}"
        found = json.loads(file.read_text())
    return {test.removeprefix("tests/"): Reach(seconds, set(functions)) for test, (seconds, functions) in found.items()}


def try_site(site: Site, reaches: dict[str, Reach]) -> Verdict:
    name = re.sub(r"\.<locals>.*", "", f"{site.module}:{site.function}")
    reaching = sorted((reach.seconds, test) for test, reach in reaches.items() if name in reach.functions)
    tests: list[str] = []
    left = {True: QUICK_S, False: SLOW_S}
    for seconds, test in reaching:
        if left[seconds < 0.5] > 0:
            left[seconds < 0.5] -= seconds
            tests.append(test)
    if not tests:
        return Verdict(site, Ending(0, "no test reaches it"), 0)
    used = QUICK_S + SLOW_S - sum(left.values())
    with tempfile.TemporaryDirectory(prefix="keylane-mutant-") as folder:
        ending = run(planted(site), Path(folder), tests, timeout_s=TIMEOUT_S, cpu_s=round(5 + 2 * used))
    return Verdict(site, ending, len(tests))


def _known(results: Path | None) -> dict[Site, Verdict]:
    lines = results.read_text().splitlines() if results is not None and results.exists() else []
    verdicts = [Verdict(Site(*site), Ending(*ending), tests) for site, ending, tests in map(json.loads, lines)]
    return {one.site: one for one in verdicts}


def _word(verdict: Verdict) -> str:
    return "lives" if verdict.is_alive else "dead "


def _name(site: Site) -> str:
    return f"{site.module}:{site.function} {site.text}"


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ("__repr__", "__str__"):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _changes(node: ast.AST) -> Iterator[Change]:
    """In a function; not in what it logs, raises, or says of types."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for number, inner in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(inner, ast.AST) and not _is_said(inner):
                place = Place(node, field, number if isinstance(value, list) else None, inner)
                yield from _changes_at(place)
                yield from _changes(inner)


def _is_said(node: ast.AST) -> bool:
    is_log = isinstance(node, ast.Expr) and bool(OF_LOGS & mentions(node))
    return is_log or isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom)


def _changes_at(place: Place) -> Iterator[Change]:
    node = place.node
    if place.field == "test":
        yield Change("not", place, [ast.UnaryOp(ast.Not(), node)])  # type: ignore[arg-type]
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHERS:
            yield Change("compare", place, [ast.Compare(node.left, [OTHERS[type(operator)]()], node.comparators)])
        case ast.BoolOp():
            yield Change("and/or", place, [ast.BoolOp(OTHERS[type(node.op)](), node.values)])
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield Change("+/-", place, [ast.BinOp(node.left, OTHERS[type(node.op)](), node.right)])
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield Change("+/-", place, [ast.AugAssign(node.target, OTHERS[type(node.op)](), node.value)])
        case ast.Constant(value=bool()):
            yield Change("bool", place, [ast.Constant(not node.value)])
        case ast.Constant(value=int() as value):
            yield Change("one more", place, [ast.Constant(value + 1)])
        case ast.Name(id=name) if name in NAMES and place.field == "func":
            yield Change("min/max", place, [ast.Name(NAMES[name], ast.Load())])
        case ast.Return(value=ast.expr() as result) if not isinstance(result, ast.Constant):
            yield Change("return None", place, [ast.Return(ast.Constant(None))])
    is_set = isinstance(node, ast.Assign) and all(
        isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets
    )
    if is_set or isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield Change("drop", place, [ast.Pass()])
