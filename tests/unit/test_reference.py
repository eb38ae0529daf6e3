"""docs/cli.md and docs/options.md have every command and option, as the code has them."""

from __future__ import annotations

import dataclasses
import re

import pytest
from pages import marks

from keylane.broker.config import BrokerConfig
from keylane.cli.main import COMMANDS
from keylane.pipeline import Pipeline
from kit import reference


@pytest.mark.parametrize(("page", "name"), reference.WRITTEN)
def test_the_page_is_what_the_code_says(page: str, name: str) -> None:
    begin, end = marks(name)
    shown = (reference.DOCS / page).read_text().partition(begin)[2].partition(end)[0]
    assert shown.strip() == reference.WRITTEN[page, name]().strip(), "make house writes it"


def test_every_command_has_a_section() -> None:
    page = reference.all_commands()
    assert set(re.findall(r"^## keylane (\S+)", page, re.MULTILINE)) == set(COMMANDS)
    assert "## keylane dlq redrive\n" in page, "and what is below it"
    assert "| `--bootstrap" in page, "with its options"


def test_every_option_of_a_pipeline_and_of_the_broker_has_a_row() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", reference.pipeline_options() + reference.broker_options(), re.MULTILINE)
    names = {one.name for one in dataclasses.fields(Pipeline)}
    settings = {one.name.replace("_", ".") for one in dataclasses.fields(BrokerConfig)}
    assert names | settings <= set(rows)


@dataclasses.dataclass
class Options:
    one: int
    two: str = "a|b"
    """Of the
    second."""
    three: list[int] = dataclasses.field(default_factory=list)

    other = 1
    """Of no field."""


def test_an_option_has_its_default_and_its_docstring() -> None:
    rows = [*reference.options(Options)]
    assert rows == [("one", "required", ""), ("two", "`'a|b'`", "Of the\n    second."), ("three", "`list()`", "")]
    assert reference.table(("a", "b", "c"), iter(rows[1:2])).splitlines()[2] == r"| two | `'a\|b'` | Of the second. |"
