"""What `make docs` writes has every command and option."""

from __future__ import annotations

import dataclasses
import re

import reference

from keylane.broker.config import BrokerConfig
from keylane.cli.main import COMMANDS
from keylane.pipeline import Pipeline


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


def test_every_option_of_a_value_has_a_row_also_one_that_its_class_inherits() -> None:
    for of in reference.OPTIONS:
        listed = [base for base in of.__mro__[1:] if base in reference.OPTIONS]
        inherited = {one.name for base in listed for one in dataclasses.fields(base)}
        rows = {name for name, _, _ in reference.options(of)}
        assert rows == {one.name for one in dataclasses.fields(of)} - inherited, of
    assert "### PostgresStore\n" in reference.pipeline_options()
