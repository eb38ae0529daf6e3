"""Where mutants are aimed: the code of a name below `src/keylane`, and what is wrong with an aim that does not hit."""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mutants.faults import mentions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mutants import Mutant

SRC = Path(__file__).parents[2] / "src"


class AimError(Exception):
    """A mutant that is aimed at nothing."""


class Broken(NamedTuple):
    """A module with a fault in it."""

    module: str
    tree: ast.Module


def broken(mutant: Mutant, src: Path = SRC) -> Broken:
    """The module as the mutant has it, or an `AimError` that says how to aim anew."""
    module, name = _target(mutant, src)
    tree = ast.parse(_modules(src)[module])
    node = dict(_named(tree.body))[name]
    strange = sorted(_strange_names(mutant, tree, node, src))
    if strange:
        raise AimError(
            f"{_words(mutant)} brings along {', '.join(strange)}: {module} has no such name; write what it has"
        )
    if not mutant.fault.apply(node):
        raise AimError(
            f"{_words(mutant)} changes nothing: {mutant.at} in {module} has nothing that {mutant.fault.name} fits; aim "
            "it at what does this work now"
        )
    return Broken(module, ast.fix_missing_locations(tree))


def _target(mutant: Mutant, src: Path) -> tuple[str, str]:
    """The one module that has this name, and the name."""
    end, _, name = mutant.at.rpartition(":")
    found = [
        module
        for module in _definers(src).get(name.rpartition(".")[2], ())
        if f".{module}".endswith(f".{end}" if end else "") and name in _names(src, module)
    ]
    if len(found) != 1:
        raise AimError(
            f"{_words(mutant)} is aimed at {mutant.at}, which is defined in {' and '.join(found) or 'no module'}: name "
            "the function that does this work now, as name, or as module:name where several have that name"
        )
    return found[0], name


@cache
def _modules(src: Path) -> dict[str, str]:
    files = {one: one.relative_to(src).with_suffix("").parts for one in sorted(src.glob("keylane/**/*.py"))}
    return {".".join(parts).removesuffix(".__init__"): file.read_text() for file, parts in files.items()}


@cache
def _definers(src: Path) -> dict[str, list[str]]:
    """The modules that may define a name, by name."""
    found: dict[str, list[str]] = {}
    for module, text in _modules(src).items():
        for name in set(re.findall(r"^ *(?:(?:async )?def |class |(?=\w+(?:: [^=\n]*)? = ))(\w+)", text, re.MULTILINE)):
            found.setdefault(name, []).append(module)
    return found


@cache
def _names(src: Path, module: str) -> frozenset[str]:
    return frozenset(name for name, _ in _named(ast.parse(_modules(src)[module]).body))


@cache
def _words_of_all(src: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", " ".join(_modules(src).values())))


def _named(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes and constants, with their qualified names."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name, node
            case ast.ClassDef():
                yield prefix + node.name, node
                yield from _named(node.body, f"{prefix}{node.name}.")
            case ast.Assign(targets=[ast.Name() as name]) | ast.AnnAssign(target=ast.Name() as name):
                yield prefix + name.id, node
            case ast.If() | ast.Try():
                yield from _named(node.body, prefix)


def _strange_names(mutant: Mutant, tree: ast.Module, node: ast.AST, src: Path) -> set[str]:
    """Which the fault brings along and its place does not have: it would be noticed for a wrong reason."""
    brought = ast.parse("\n".join(mutant.fault.texts))
    known = mentions(node) | set(dir(builtins)) | {"_"}
    known |= {name for one in tree.body for name in _top_names(one)}
    known |= {one.id for one in ast.walk(brought) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    known |= {one.arg for one in ast.walk(brought) if isinstance(one, ast.arg)}
    names = {one.id for one in ast.walk(brought) if isinstance(one, ast.Name)} - known
    attributes = {one.attr for one in ast.walk(brought) if isinstance(one, ast.Attribute)}
    return names | (attributes - _words_of_all(src))


def _top_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((one.asname or one.name).partition(".")[0] for one in node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _words(mutant: Mutant) -> str:
    return f"the mutant “{mutant.breaks}”"
