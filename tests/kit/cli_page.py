"""docs/cli.md, from the parsers of the commands: `python -m kit.cli_page` writes it."""

from __future__ import annotations

import argparse
from textwrap import fill
from typing import TYPE_CHECKING

from pages import put_into_page

from keylane.cli.main import build_parser
from kit.house import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "cli.md"
EVERYWHERE = {"--help", "--version", "--verbose"}
WIDTH = 140


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
        if isinstance(action, argparse._SubParsersAction):
            continue
        if not EVERYWHERE & set(action.option_strings) and action.help != argparse.SUPPRESS:
            value = "" if action.nargs == 0 else formatter._format_args(action, action.metavar or action.dest.upper())
            text = formatter._expand_help(action) if action.help else ""
            yield " ".join([*action.option_strings[-1:], value]).strip(), " ".join(text.split())


def written() -> str:
    """All commands, one section each."""
    parts = []
    for parser in commands(build_parser([])):
        rows = ["| `{}` | {} |".format(*(one.replace("|", r"\|") for one in row)) for row in arguments(parser)]
        about = fill(" ".join((parser.description or "").split("\n\n")[0].split()), WIDTH)
        table = ["", "| argument | |", "|---|---|", *rows] if rows else []
        parts.append("\n".join([f"## {parser.prog}", "", about[:1].upper() + about[1:], *table, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    put_into_page(PAGE, "commands", written())
