"""The house: figures and rules of `src` as a whole. `python -m kit.house figures` prints, `… owners PACKAGE…` checks.

- Circles of files: files that import each other, some way round. Every import counts: of types, and in functions.
- Explicit `Any`: every place at which the name stands, but for its import.
- Statements: of the Python grammar (`ast.stmt`: a `def`, an `if` and an assignment are one each, with what they hold
  counted beside them), without strings that stand alone, which are docstrings. Of the packages that run work, of
  `keylane`'s own files, and of the DataFrames.
- Owners: nobody changes another object's attribute. What is found: `other.name = …` (with an operator too, in `for`,
  `with` and `del`, and through an attribute of one's own: `self.other.name = …`), `setattr` and `delattr` on it, and
  any use of its `_private` attribute, which is how its containers would be changed. One's own is what `self` and `cls`
  name, and `super()`. Python's own attributes (`made.__cause__ = error`) are left out, `__dict__` apart.
- Arrows: which package imports which, without the arrows that follow from others.
- States: the tables in the docstrings of the classes whose objects go through them, for the page.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
from pages import put_into_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "keylane"
COUNTED = ("engine", "flow", "consumer", ".", "spark/structured")
"""Whose statements count, where they exist; `.` is keylane's own files."""
MAX_STATEMENTS = 6_000
NAMED_TUPLES = {"_replace", "_asdict", "_make", "_fields", "_field_defaults"}
"""Public, in spite of their names."""
SETTERS = ("setattr", "delattr", "__setattr__", "__delattr__")

STATES = {"Source": "flow", "Partition": "consumer"}
"""Classes whose docstring has a table of states, and the package that they are in."""

Graph = dict[str, set[str]]
"""Who imports whom."""


# --- imports ---


def imports(*packages: str) -> Graph:
    """Between all files of these packages, as the import contracts see them."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) - {name} for name in graph.modules}


def reachable(graph: Mapping[str, Iterable[str]]) -> Graph:
    """Whom each one imports, directly and through others."""
    found: Graph = {}
    for start in graph:
        seen: set[str] = set()
        front = set(graph[start])
        while front:
            seen |= front
            front = {theirs for name in front for theirs in graph.get(name, ())} - seen
        found[start] = seen
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Those that import each other, the largest circle first."""
    reached = reachable(graph)
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, found), key=lambda names: (-len(names), names))


def arrows(graph: Mapping[str, Iterable[str]], root: str = "keylane") -> list[tuple[str, str]]:
    """Between the packages and files directly below `root`, those that follow from others left out. Packages in a
    circle are one: "a, b"."""
    between: Graph = {}
    for importer, theirs in graph.items():
        for imported in theirs:
            pair = [name.split(".")[1] for name in (importer, imported) if name.startswith(f"{root}.")]
            if len(pair) == 2 and pair[0] != pair[1]:
                between.setdefault(pair[0], set()).add(pair[1])
                between.setdefault(pair[1], set())
    whole = {name: ", ".join(names) for names in circles(between) for name in names}
    packages: Graph = {}
    for importer, theirs in between.items():
        ours = whole.get(importer, importer)
        packages.setdefault(ours, set()).update({whole.get(name, name) for name in theirs} - {ours})
    reached = reachable(packages)
    return sorted(
        (ours, name)
        for ours, theirs in packages.items()
        for name in theirs
        if not any(name in reached[other] for other in theirs)
    )


def drawing(pairs: Iterable[tuple[str, str]]) -> str:
    """As a Mermaid diagram."""
    lines = [f"  {_node(importer)} --> {_node(imported)}" for importer, imported in pairs]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def _node(name: str) -> str:
    return f"{name.replace(', ', '_')}[{name}]" if ", " in name else name


# --- counts ---


def files(package: str) -> list[Path]:
    """Of a folder below `src/keylane`, or of a file there. Raises `FileNotFoundError`."""
    place = SOURCES / package
    found = sorted(place.glob("*.py") if package == "." else place.rglob("*.py")) or [place.with_suffix(".py")]
    if not found[0].exists():
        raise FileNotFoundError(f"{package!r} is no package of src/keylane")
    return found


def statements(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in ast.walk(tree))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def any_count(tree: ast.AST) -> int:
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def all_statements() -> int:
    paths = {path for package in COUNTED if _exists(package) for path in files(package)}
    return sum(statements(_tree(path)) for path in paths)


def all_any() -> int:
    return sum(any_count(_tree(path)) for path in (ROOT / "src").rglob("*.py"))


def _exists(package: str) -> bool:
    return (SOURCES / package).is_dir()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# --- owners ---


def intrusions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where another object's attribute is changed, or its private one looked at: line and text."""
    modules = {one.asname or one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _is_own(node.value):
            if isinstance(node.value, ast.Name) and node.value.id in modules and isinstance(node.ctx, ast.Load):
                continue  # a module's function with an underscore, like os._exit
            is_changed = isinstance(node.ctx, ast.Store | ast.Del) and not node.attr.endswith("__")
            if is_changed or _is_private(node.attr):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and _name(node.func) in SETTERS and not all(map(_is_own, node.args[:1])):
            yield node.lineno, ast.unparse(node)


def _is_own(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _name(node.func) == "super" or (_name(node.func) == "type" and all(map(_is_own, node.args)))
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_private(attribute: str) -> bool:
    is_pythons = attribute.endswith("__") and attribute != "__dict__"
    return attribute.startswith("_") and not is_pythons and attribute not in NAMED_TUPLES


def _name(function: ast.expr) -> str:
    return str(getattr(function, "id", getattr(function, "attr", "")))


# --- states ---


def class_of(package: str, name: str) -> tuple[Path, ast.ClassDef]:
    """The one class of this name in a package, and its file, wherever that is. Raises `ValueError`."""
    found = [
        (path, node)
        for path in files(package)
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if len(found) != 1:
        raise ValueError(f"{package} has {len(found)} classes {name!r}: the one with the table of states is meant")
    return found[0]


def states(name: str) -> str:
    """The table of states in the class's docstring, as the page has it."""
    path, node = class_of(STATES[name], name)
    table = "".join(f"{line}\n" for line in (ast.get_docstring(node) or "").splitlines() if line.startswith("|"))
    return f"From `{name}` in `{path.relative_to(SOURCES.parent)}`:\n\n{table}"


# --- the command ---


def figures(graph: Mapping[str, Iterable[str]]) -> str:
    found = circles(graph)
    return "\n".join([
        f"statements of {', '.join(filter(_exists, COUNTED))}: {all_statements()} (goal {MAX_STATEMENTS})",
        f"explicit Any in src: {all_any()}",
        f"circles of files: {len(found)}",
        *(f"  {len(names)}: {' '.join(names)}" for names in found),
    ])  # fmt: skip


def owners(packages: Iterable[str]) -> list[str]:
    """One line for each place where another object's attribute is changed, or its private one used."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text} is another object's"
        for package in packages
        for path in files(package)
        for line, text in sorted(intrusions(_tree(path)))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kit.house", description="Figures and rules of src as a whole.")
    commands = parser.add_subparsers(required=True, dest="command")
    printing = commands.add_parser("figures", help="statements, Any and circles")
    printing.add_argument("--page", type=Path, metavar="FILE", help="also put packages and states into this page")
    checking = commands.add_parser("owners", help="nobody assigns another object's attribute in these packages")
    checking.add_argument("packages", nargs="+", metavar="PACKAGE", help="a folder or file of src/keylane")
    options = parser.parse_args()
    if options.command == "owners":
        try:
            found = owners(options.packages)
        except FileNotFoundError as error:
            parser.error(str(error))
        sys.stdout.write("".join(f"{line}\n" for line in found))
        return 1 if found else 0
    graph = imports("keylane", "pyspark_keylane")
    sys.stdout.write(f"{figures(graph)}\n")
    if options.page is not None:
        put_into_page(options.page, "packages", drawing(arrows(graph)))
        for name in STATES:
            put_into_page(options.page, f"states of a {name}", states(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
