"""Circles of files and `Any` do not grow, docs/architecture.md is true, and each check finds what is planted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from pages import marks
from walk.__main__ import purpose

from kit import house
from mutants.all import MUTANTS

PAGE = house.ROOT / "docs" / "architecture.md"
CIRCLES: list[int] = []
"""How many files are in each circle, by size: only smaller, and shorter, until it is empty."""
MAX_ANY = 690


def test_circles_of_files_only_shrink() -> None:
    found = house.circles(house.imports("keylane", "pyspark_keylane"))
    assert [len(names) for names in found] == CIRCLES, f"if these are fewer or smaller, write them down: {found}"


def test_explicit_any_does_not_grow() -> None:
    assert house.all_any() <= MAX_ANY


def test_the_page_draws_the_packages_as_they_are() -> None:
    drawn = written("packages")
    assert drawn == house.drawing(house.arrows(house.imports("keylane"))).strip(), "make house draws them"


@pytest.mark.parametrize("name", ["record", "commit", "row"])
def test_the_pages_tours_pass_files_that_exist_and_say_what_they_say(name: str) -> None:
    rows = re.findall(r"^\d+\. `(.+?)`: (.*)$", written(f"walk of a {name}"), re.MULTILINE)
    assert len(rows) > 3
    for file, text in rows:
        path = house.ROOT / "src" / file
        assert path.exists(), f"{file} is gone: {REMADE}"
        assert purpose(path) == text, f"{file} says something else now: {REMADE}"


@pytest.mark.parametrize("name", house.STATES)
def test_the_pages_states_are_those_of_the_docstring(name: str) -> None:
    table = house.states(name)
    assert table.count("\n| ") == 6, "a head and five states"
    assert written(f"states of a {name}") == table.strip(), "make house copies them"


@pytest.mark.parametrize("name", house.STATES)
def test_states_name_what_exists_and_become_each_other(name: str) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in house.states(name).splitlines()[2:]]
    states = {row[0] for row in rows[2:]}
    for _, _, brought, becomes in rows[2:]:
        assert brought
        assert {re.split(r"[(:,]", part)[0].strip() for part in becomes.split(";")} <= {*states, ""}, becomes
    names = {one for row in rows for text in row for one in re.findall(r"`(.+?)`", text)}
    defined = defined_in_src()
    assert {one for one in names if not set(one.split(".")) <= defined} == set()


def test_every_call_that_moves_an_item_stands_in_the_table() -> None:
    """A move shows in what a source holds: its queues, or how many are out."""
    table = house.states("Source")
    held = {"out", "_again", "_beyond", "_ready"}
    movers = set()
    for method in house.class_of("flow", "Source")[1].body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            changed = {ast.unparse(node.target) for node in ast.walk(method) if isinstance(node, ast.AugAssign)}
            called = {ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)}
            if any(one.startswith(f"self.{name}") for name in held for one in changed | called):
                movers.add(method.name)
    assert len(movers) >= 9
    assert {one for one in movers if f"`{one}`" not in table} == set()


def defined_in_src() -> set[str]:
    return {name for path in house.SOURCES.rglob("*.py") for name in defined_in(path)}


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Names of classes, functions, variables and attributes."""
    found: set[str] = set()
    for node in ast.walk(house._tree(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def changes() -> list[list[str]]:
    """The rows of "Where do I change …?": what, where, what to do there, guarded by."""
    section = PAGE.read_text().split("## Where do I change …?")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_everyday_changes_have_rows() -> None:
    assert len(changes()) >= 20


@pytest.mark.parametrize("row", changes(), ids=lambda row: row[0])
def test_where_to_change_what_names_files_that_exist_and_what_is_in_them(row: list[str]) -> None:
    _, where, doing, guarded = row
    names = re.findall(r"`(.+?)`", f"{where} {doing}")
    patterns = [re.sub("<.+?>", "*", name) for name in names if name.endswith(".py")]
    assert names[0].endswith(".py"), "the file comes first"
    found = {pattern: sorted(house.SOURCES.glob(pattern)) for pattern in patterns}
    assert [pattern for pattern, paths in found.items() if not paths] == []
    defined = {name for paths in found.values() for path in paths for name in defined_in(path)}
    symbols = {name for name in names if name.isidentifier()}
    assert symbols - defined == set()
    for page in re.findall(r"docs/[\w-]+\.md", doing):
        assert (house.ROOT / page).exists(), page

    tests = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", guarded)
    assert tests
    for file, name in tests:
        path = house.ROOT / "tests" / file
        assert path.exists(), file
        assert not name or name in defined_in(path), name
    files = {str(path.relative_to(house.SOURCES)) for paths in found.values() for path in paths}
    has_mutants = any(one.file in files for one in MUTANTS)
    assert guarded.endswith("; mutants") == has_mutants, "mutants are aimed at these files, or they are not"


REMADE = 'make walk ARGS="--page docs/architecture.md" writes the tours'


def written(name: str) -> str:
    """What stands between the page's marks."""
    begin, end = marks(name)
    return PAGE.read_text().split(begin)[1].split(end)[0].strip()


def test_each_package_lists_its_doors() -> None:
    """In its docstring, as its contract has them; exceptions, with an importer of their own, stand in the contract."""
    contracts = tomllib.loads((house.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    doors = {
        contract["protected_modules"][0]: {
            imported
            for importer, _, imported in (one.partition(" -> ") for one in contract["ignore_imports"])
            if importer == "**"
        }
        for contract in contracts
        if contract["type"] == "protected"
    }
    assert len(doors) > 10
    for package, allowed in doors.items():
        text = ast.get_docstring(house._tree(house.files(package.removeprefix("keylane."))[0])) or ""
        listed = re.search(r"^Doors: (.+?)\.$", text, re.MULTILINE | re.DOTALL)
        assert listed is not None, f"{package} lists no doors"
        found = {package} if "the package itself" in listed[1] else set()
        assert {f"{package}.{name}" for name in re.findall(r"`(.+?)`", listed[1])} | found == allowed, package


# --- each check finds what is planted ---


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a package with the files that the test's parameter names."""
    name = f"planted_{abs(hash(tmp_path))}"
    for file, text in request.param.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("planted", name))
        (path.parent / "__init__.py").touch()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return name


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted import b\n"


@pytest.mark.parametrize(
    ("planted", "circles"),
    [
        ({"a.py": "from planted import b", "b.py": "", "c.py": "import planted.a"}, []),
        ({"a.py": TYPES, "b.py": "from planted.a import TYPE_CHECKING"}, [["a", "b"]]),
        ({"a.py": "def f():\n    from planted import b", "b.py": "from planted import c", "c.py": "import planted.a"},
         [["a", "b", "c"]]),
    ],
    indirect=["planted"],
)  # fmt: skip
def test_circles_through_types_and_functions_are_found(planted: str, circles: list[list[str]]) -> None:
    found = house.circles(house.imports(planted))
    assert [[name.removeprefix(f"{planted}.") for name in names] for names in found] == circles


def test_arrows_that_follow_are_left_out_and_circles_are_one() -> None:
    graph = {
        "p.top.a": {"p.middle.b", "p.low", "p.top.x"},
        "p.middle.b": {"p.low"},
        "p.low": {"p.beside"},
        "p.beside": {"p.low"},
        "p": {"p.top.a"},
    }
    assert house.arrows(graph, "p") == [("middle", "beside, low"), ("top", "middle")]
    assert house.drawing([("middle", "beside, low")]).splitlines()[2] == "  middle --> beside_low[beside, low]"


def test_statements_are_counted_without_docstrings() -> None:
    text = '"""A file."""\nx = 1\n"""What x is."""\ndef f():\n    """A function."""\n    if x:\n        return x\n'
    assert house.statements(ast.parse(text)) == 4


def test_any_is_counted_where_it_stands_and_not_where_it_is_imported() -> None:
    text = "from typing import Any\nimport typing\ndef f(a: Any, b: dict[str, typing.Any]) -> Any: return any([a])\n"
    assert house.any_count(ast.parse(text)) == 3


@pytest.mark.parametrize(
    "fault",
    [
        "other.name = 1",
        "other.count += 1",
        "other.name: int = 1",
        "del other.name",
        "self.other.name = 1",
        "self.lines[0].name = 1",
        "first, other.name = 1, 2",
        "for other.name in range(3): pass",
        "with open('f') as other.file: pass",
        "other._lines[0] = 1",
        "other._lines.append(1)",
        "print(self.other._lines)",
        "setattr(other, 'name', 1)",
        "object.__setattr__(other, 'name', 1)",
        "other.__dict__['name'] = 1",
    ],
)
def test_a_change_of_another_object_is_found(fault: str) -> None:
    tree = ast.parse(f"class A:\n    def f(self, other):\n        {fault}\n")
    assert [line for line, _ in house.intrusions(tree)] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "self.name = other.name",
        "self._lines[0] = 1",
        "self.lines[other.name] += 1",
        "cls._made = 1",
        "super()._begin()",
        "type(self)._made",
        "object.__setattr__(self, 'name', 1)",
        "other.lines.append(1)",
        "entry._replace(name=1)",
        "error.__cause__ = other",
        "other: int = 1",
    ],
)
def test_a_change_of_ones_own_is_none(text: str) -> None:
    tree = ast.parse(f"class A:\n    def f(self, other):\n        {text}\n")
    assert list(house.intrusions(tree)) == []


def test_the_command_names_the_place_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "SOURCES", tmp_path)
    (tmp_path / "flow" / "inner").mkdir(parents=True)
    (tmp_path / "flow" / "inner" / "a.py").write_text("def f(a):\n    a.b = 1\n")
    (tmp_path / "clean.py").write_text("x = 1\n")

    def run(*packages: str) -> int:
        monkeypatch.setattr(sys, "argv", ["house", "owners", *packages])
        return house.main()

    assert run("clean") == 0
    assert capsys.readouterr().out == ""
    assert run("clean", "flow") == 1
    assert capsys.readouterr().out == "flow/inner/a.py:2: a.b is another object's\n"
    with pytest.raises(SystemExit, match="2"):
        run("folw")
    assert "'folw' is no package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        ({"inner/door.py": "import planted.inner.room", "inner/room.py": "", "a.py": "import planted.inner.door"}, 0),
        ({"inner/door.py": "import planted.inner.room", "inner/room.py": "", "a.py": "import planted.inner.room"}, 1),
        ({"inner/door.py": "", "inner/room.py": "", "a.py": ""}, 1),
    ],
    ids=["by the door", "not by the door", "a door that nothing imports"],
    indirect=["planted"],
)
def test_the_contract_of_doors_finds_who_comes_in_elsewhere(planted: str, code: int, tmp_path: Path) -> None:
    """In the form that pyproject.toml has it."""
    (tmp_path / "contracts.toml").write_text(f"""
[tool.importlinter]
root_package = "{planted}"
[[tool.importlinter.contracts]]
name = "Doors"
type = "protected"
protected_modules = ["{planted}.inner"]
allowed_importers = []
ignore_imports = ["** -> {planted}.inner.door"]
""")
    linter = Path(sys.executable).with_name("lint-imports")
    command = [str(linter), "--no-cache", "--config", "contracts.toml"]
    ran = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=False)
    assert ran.returncode == code, ran.stdout
