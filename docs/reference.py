"""What `make docs` writes into the pages: all that the code says already.

`python docs/reference.py FOLDER` puts it between the marks of a copy of the pages: commands from their parsers, options
from their classes, APIs, errors, metrics and states from their tables, and which package imports which.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import grimp
from pages import put_into_page

import keylane
from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import load_apis
from keylane.cli.main import COMMANDS, build_parser
from keylane.consumer.health import Health
from keylane.consumer.partitions import Partition
from keylane.consumer.snapshot import OldestRecord, Snapshot
from keylane.coordinator.groups import states as group_states
from keylane.coordinator.transactions import states as transaction_states
from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import SqliteStore
from keylane.flow.breakers import OpenBreaker
from keylane.flow.items import Source
from keylane.flow.workers import Histogram
from keylane.kafka.error_table import GROUPS, Mark
from keylane.metrics.families import families, health_families, lane_families
from keylane.offset_servers.between import Counts
from keylane.offset_servers.measures import State as ServerState
from keylane.offset_servers.measures import server_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERYWHERE = {"--help", "--version", "--verbose"}
WIDTH = 140
OPTIONS = (
    keylane.Flow, keylane.Pipeline, keylane.Commit, keylane.External, keylane.Operations, keylane.Retries,
    keylane.Rates, keylane.Batch, keylane.Breaker, keylane.Threads, keylane.Processes, keylane.DeadLetter,
    keylane.Per, keylane.Cap, keylane.AtOnce, keylane.Transactional, keylane.ExactlyOnce, SqliteStore, PostgresStore,
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
    """Name, default and meaning of each option that the class has, but for those of a class that is listed itself."""
    said: dict[str, str] = {}
    for base in of.__mro__:
        if base is of or (dataclasses.is_dataclass(base) and base not in OPTIONS):
            (node,) = ast.parse(inspect.cleandoc(inspect.getsource(base))).body
            assert isinstance(node, ast.ClassDef)
            said = meanings(node) | said
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


def supported_apis() -> str:
    rows = (
        (
            "".join(word.capitalize() for word in one.name.split("_")),
            str(one.key),
            f"{one.min_version}–{one.max_version}",
            one.lacks,
        )
        for one in load_apis().values()
    )
    return table(("API", "key", "versions", "lacks"), rows) + "\n"


def errors() -> str:
    """A row a cause."""
    rows = (
        (group.meaning.value, group.cause + marks_of(group.marks), ", ".join(f"`{one}`" for one in group.names))
        for group in GROUPS
    )
    return table(("meaning", "cause", "errors"), rows) + "\n"


def marks_of(marks: frozenset[Mark]) -> str:
    return "".join(f" *({mark.value})*" for mark in Mark if mark in marks)


def metrics() -> str:
    """Of members, lanes and offset servers."""
    snapshot = Snapshot(oldest=OldestRecord("", 0, 0, 0), breakers=(OpenBreaker("", 0),))
    server = ServerState(Counts(0, 0), Histogram(), 0, 0, 0, 0, 0, 0, 0, 0, None)
    suffixes = {"counter": "_total", "gauge": "", "histogram": ""}
    rows = (
        (f"`{one.name}{suffixes[one.kind]}`", one.kind, one.help)
        for one in chain(families(snapshot), health_families(Health()), lane_families(()), server_families(server))
    )
    return table(("metric", "kind", "meaning"), rows) + "\n"


def states_of_a_group() -> str:
    ways = "\n".join(f"    {row.source.value} --> {row.target.value}: {row.cause}" for row in group_states.TRANSITIONS)
    return f"```mermaid\nstateDiagram-v2\n    [*] --> {group_states.State.EMPTY.value}\n{ways}\n```\n"


def states_of_a_transaction() -> str:
    meaning = transaction_states.MEANINGS
    states = ((str(one.value), one.title, meaning[one]) for one in transaction_states.State)
    ways = ((row.source.title, row.target.title, row.cause) for row in transaction_states.TRANSITIONS)
    return f"{table(('number', 'state', 'meaning'), states)}\n\n{table(('from', 'to', 'when'), ways)}\n"


def states_in_docstring(of: type) -> str:
    lines = [line for line in inspect.cleandoc(of.__doc__ or "").splitlines() if line.startswith("|")]
    return "\n".join([f"From `{of.__name__}` in `{of.__module__}`:", "", *lines, ""])


def packages() -> str:
    """Which package imports which, as a Mermaid diagram, without the arrows that follow from others."""
    graph = grimp.build_graph("keylane", cache_dir=None)
    for package in (children := graph.find_children("keylane")):
        graph.squash_module(package)
    imported = {one: graph.find_modules_directly_imported_by(one) & children - {one} for one in children}
    needless = {
        (one, other)
        for one, others in imported.items()
        for way in others
        for other in others - {way}
        if graph.chain_exists(importer=way, imported=other)
    }
    arrows = sorted(
        (one, other) for one, others in imported.items() for other in others if (one, other) not in needless
    )
    lines = [f"  {one.partition('.')[2]} --> {other.partition('.')[2]}" for one, other in arrows]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


WRITTEN: dict[tuple[str, str], Callable[[], str]] = {
    ("architecture.md", "packages"): packages,
    ("architecture.md", "states of a Partition"): lambda: states_in_docstring(Partition),
    ("architecture.md", "states of a Source"): lambda: states_in_docstring(Source),
    ("cli.md", "commands"): all_commands,
    ("errors.md", "errors"): errors,
    ("metrics.md", "metrics"): metrics,
    ("offset-store.md", "states of a group"): states_of_a_group,
    ("options.md", "broker"): broker_options,
    ("options.md", "pipelines"): pipeline_options,
    ("supported-apis.md", "supported APIs"): supported_apis,
    ("transactions.md", "states of a transaction"): states_of_a_transaction,
}
"""By page and mark."""


if __name__ == "__main__":
    for (page, name), text in WRITTEN.items():
        put_into_page(Path(sys.argv[1]) / page, name, text())
