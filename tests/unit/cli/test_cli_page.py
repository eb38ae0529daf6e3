"""docs/cli.md has every command with its arguments, as the parsers have them."""

from __future__ import annotations

import re

from pages import marks

from keylane.cli.main import COMMANDS
from kit import cli_page


def test_the_page_is_what_the_parsers_say() -> None:
    begin, end = marks("commands")
    page = cli_page.PAGE.read_text()
    assert page.partition(begin)[2].partition(end)[0].strip() == cli_page.written().strip(), "make house writes it"


def test_every_command_has_a_section() -> None:
    sections = re.findall(r"^## keylane (\S+)", cli_page.written(), re.MULTILINE)
    assert set(sections) == set(COMMANDS)
