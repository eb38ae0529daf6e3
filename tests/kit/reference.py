"""docs/cli.md and docs/options.md, from the commands' parsers and the options' classes: `python -m kit.reference`
writes their tables."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING

from pages import put_into_page

import keylane
from keylane.broker.config import BrokerConfig
from keylane.cli.main import COMMANDS, build_parser
from kit.house import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCS = ROOT / "docs"
EVERYWHERE = {"--help", "--version", "--verbose"}
WIDTH = 140
OPTIONS = (
    keylane.Flow, keylane.Pipeline, keylane.Commit, keylane.External, keylane.Operations, keylane.Retries,
    keylane.Rates, keylane.Batch, keylane.Breaker, keylane.Threads, keylane.Processes, keylane.DeadLetter,
    keylane.Transactional, keylane.ExactlyOnce,
)  # fmt: skip


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Those that do something by themselves; a group of commands does not."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below or parser.get_default("func"):
        yield parser
    for action in below:
        for one in action.choices.values():
            yield from commands(one)


def arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Each as it is written, and what it means."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        if not EVERYWHERE & set(action.option_strings):
            default = action.dest.upper()
            value = "" if action.nargs == 0 else formatter._format_args(action, default)
            text = formatter._expand_help(action) if action.help else ""
            yield f"`{' '.join([*action.option_strings[-1:], value]).strip()}`", text


def all_commands() -> str:
    """One section each."""
    sections = []
    for parser in chain.from_iterable(commands(build_parser([name])) for name in COMMANDS):
        about = fill(" ".join((parser.description or "").split("\n\n")[0].split()), WIDTH)
        parts = [f"## {parser.prog}", about[:1].upper() + about[1:], table(("argument", ""), arguments(parser))]
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections) + "\n"


def options(of: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each option that the class itself has."""
    (node,) = ast.parse(inspect.cleandoc(inspect.getsource(of))).body
    assert isinstance(node, ast.ClassDef)
    said = meanings(node)
    for one in dataclasses.fields(of):
        if one.name in said:
            yield one.name, default(one), said[one.name]


def meanings(node: ast.ClassDef) -> dict[str, str]:
    """Of the fields that are written in the class: their docstrings."""
    found: dict[str, str] = {}
    name = ""
    for one in node.body:
        match one:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = ""
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = text
            case _:
                name = ""
    return found


def default(option: dataclasses.Field[object]) -> str:
    """As it is written in Python; a value of keylane's by its class."""
    if option.default is not dataclasses.MISSING:
        return "" if option.default == "" else f"`{option.default!r}`"
    if option.default_factory is not dataclasses.MISSING:
        return f"`{getattr(option.default_factory, '__name__', '')}()`"
    return "required"


def pipeline_options() -> str:
    sections = []
    for of in OPTIONS:
        about = [fill(in_a_cell(one), WIDTH) for one in inspect.cleandoc(of.__doc__ or "").split("\n\n")]
        rows = ((f"`{name}`", *rest) for name, *rest in options(of))
        sections.append("\n\n".join([f"### {of.__name__}", *about, table(("option", "default", ""), rows)]))
    return "\n\n".join(sections) + "\n"


def broker_options() -> str:
    rows = ((f"`{name.replace('_', '.')}`", value, text) for name, value, text in options(BrokerConfig))
    return table(("option", "default", ""), rows) + "\n"


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """In Markdown; nothing without rows."""
    lines = [f"| {' | '.join(map(in_a_cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def in_a_cell(text: str) -> str:
    """In one line; pages that docstrings name are links."""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", " ".join(text.split()).replace("|", r"\|"))


WRITTEN: dict[tuple[str, str], Callable[[], str]] = {
    ("cli.md", "commands"): all_commands,
    ("options.md", "pipelines"): pipeline_options,
    ("options.md", "broker"): broker_options,
}
"""By page and mark."""


if __name__ == "__main__":
    for (page, name), text in WRITTEN.items():
        put_into_page(DOCS / page, name, text())
