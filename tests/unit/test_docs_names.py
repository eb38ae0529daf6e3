"""What docs, README and the texts of `src` name is there: files, dotted names of keylane, links; and no old option.

CHANGELOG.md tells what was, and is left out. No decision record is: one that was replaced says by what.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from typing import TYPE_CHECKING

import pytest

from keylane.options import RENAMED
from kit import house

if TYPE_CHECKING:
    from pathlib import Path

ROOT = house.ROOT
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGES = {path.name for path in house.SOURCES.iterdir() if (path / "__init__.py").exists()}
PLACES = [ROOT, ROOT / "src", house.SOURCES, ROOT / "tests", ROOT / "bench", ROOT / "examples"]
"""Where a path may begin; a page's also beside it."""
ELSEWHERE = {"keylane.zip", "app.py", "/opt/app/app.py", "daemon.py", "ssl.py", "CONFIGURATION.md"}
"""Files of users, of Spark, Python and librdkafka."""
RENAMING = ROOT / "docs" / "adr" / "0084-options-of-a-flow.md"
"""Decides what options are called, and so has the names that they had."""

DOTTED = re.compile(r"(?<![\w./-])keylane(?:\.[A-Za-z_]\w*)+(?![\w-]|\.\w)")
PATH = re.compile(r"[\w./<>*-]+\.(?:py|md|toml|lock|xml)(?!\w|\.\w)")
IN_PACKAGE = re.compile(rf"(?<![\w./-])(?:{'|'.join(sorted(PACKAGES))})(?:/[a-z_]+)+(?![\w/.*-])")
"""`kafka/consumer`: a file by its path, without its ending."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]*))?\)")


def comments(path: Path) -> str:
    """With docstrings."""
    strings = [text.value for node in _nodes(path) if (text := _standing_alone(node)) is not None]
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "\n".join([*map(str, strings), *(one.string for one in tokens if one.type == tokenize.COMMENT)])


def _standing_alone(node: ast.AST) -> ast.Constant | None:
    value = node.value if isinstance(node, ast.Expr) else None
    return value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def said_in_src() -> str:
    """Texts that the program itself uses: settings, headers, loggers."""
    texts: list[str] = []
    for path in SOURCES:
        nodes = _nodes(path)
        alone = {id(_standing_alone(node)) for node in nodes}
        texts += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
        ]
    return "\n".join(texts)


@cache
def fields_in_src() -> frozenset[str]:
    """A setting of the broker is a field: `keylane.users.file` is `keylane_users_file`."""
    nodes = (node for path in SOURCES for node in _nodes(path))
    return frozenset(
        one.target.id for one in nodes if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    )


def is_there(name: str) -> bool:
    """A package or file, what stands in one, or a text that src uses."""
    place, parts = house.SOURCES, name.split(".")[1:]
    while parts and (place / parts[0] / "__init__.py").exists():  # a folder without one is what Python has left there
        place /= parts.pop(0)
    if parts and (file := place / f"{parts[0]}.py").exists():
        place = file
        parts.pop(0)
    file = place / "__init__.py" if place.is_dir() else place
    if not parts:
        return True
    if parts[0] in names_of(file) or name.replace(".", "_") in fields_in_src():
        return True
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", said_in_src()) is not None


@cache
def names_of(file: Path) -> frozenset[str]:
    """What a file defines, imports, or hands on by name (`__getattr__`)."""
    found: set[str] = set()
    for node in _nodes(file):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[-1])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return frozenset(found)


def has(path: str, page: Path) -> bool:
    if (page.parent / path).exists():
        return True
    pattern = re.sub(r"<\w+>", "*", path)
    return any(next(iter(place.glob(pattern)), None) is not None for place in PLACES)


def missing(page: Path, text: str) -> list[str]:
    """What it names and is not there."""
    found = [name for name in DOTTED.findall(text) if name not in ELSEWHERE and not is_there(name)]
    without = re.sub(r"\w+://\S+|\[[^\]\n]*\](?=\()", "", text)  # addresses, and the words of links
    found += [path for path in PATH.findall(without) if path not in ELSEWHERE and not has(path, page)]
    inside = [path for code in re.findall(r"`([^`\n]+)`", text) for path in IN_PACKAGE.findall(code)]
    return found + [path for path in inside if not has(path, page) and not has(f"{path}.py", page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert missing(page, page.read_text()) == []


def test_what_docstrings_and_comments_name_is_there() -> None:
    found = {str(path.relative_to(ROOT)): missing(path, comments(path)) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path) -> None:
    assert [target for target, _ in LINK.findall(page.read_text()) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [one for one in PAGES if one != RENAMING], ids=lambda path: path.name)
def test_no_page_gives_an_option_that_was_renamed(page: Path) -> None:
    assert old_options(page.read_text()) == []


@cache
def old_names() -> frozenset[str]:
    """Of options, by the errors that answer them; but for those that are something else's still."""
    used, old = set(), set(RENAMED)
    for node in (node for path in SOURCES for node in _nodes(path)):
        if isinstance(node, ast.arg):
            used.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            used.add(node.target.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "with_named_options":
            old.update(keyword.arg for keyword in node.keywords if keyword.arg is not None)
    return frozenset(old - used)


def old_options(text: str) -> list[str]:
    """Given, or named alone."""
    return [name for name in sorted(old_names()) if re.search(rf"(?<![\w.]){name}=|`{name}`", text)]


# --- each check finds what is planted ---


@pytest.mark.parametrize(
    "text",
    [
        "see `keylane.host`",
        "see keylane.flow.hosts.",
        "see `keylane.flow.core.FlowCores`",
        "see flow/cores.py",
        "see `partition.py`",
        "see `kafka/fetcher` and",
        "see [it](docs/no-page.md)",
        "see docs/adr/9999*.md",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    assert len(missing(PAGES[0], text)) == 1


def test_an_old_option_is_found() -> None:
    assert old_options("with `batch_linger_ms=5`") == ["batch_linger_ms"]


@pytest.mark.parametrize(
    "text",
    [
        "keylane.flow.host, keylane.Pipeline and `keylane.flow.items.Owner`.",
        "`flow/core.py`, `consumer/modes/<name>.py`, `flow/workers`, docs/guide.md, docs/adr/0084*.md",
        "the header `keylane.error.class`, the setting `keylane.owned.offsets.partitions`",
        "https://example.org/a/b.md",
    ],
)
def test_what_is_there_is_not(text: str) -> None:
    assert missing(PAGES[0], text) == []


def test_the_index_of_decisions_has_each_with_its_title() -> None:
    index = ROOT / "docs" / "adr" / "README.md"
    titles = {
        page.name: page.read_text().splitlines()[0].removeprefix("# ")
        for page in index.parent.glob("*.md")
        if page != index
    }
    listed = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)$", index.read_text(), re.MULTILINE)
    assert sorted((name, title) for title, name in listed) == sorted(titles.items())
